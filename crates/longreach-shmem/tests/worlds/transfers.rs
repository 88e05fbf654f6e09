//! Gets and puts, and the views that they go through.

use crate::OnAll;
use crate::label;
use longreach_device::{Pending, Slot};
use longreach_shmem::{Error, Piece, Symmetric, World};

/// X of shape (4, 1024) float32, `X[i] = 10 * rank + i`.
const ROW: usize = 1024 * 4;

fn fill(x: &Symmetric, rank: usize) -> Result<(), Error> {
    for row in 0..4 {
        let values = [(10 * rank + row) as f32; 1024];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        x.write(rank, row * ROW, &bytes)?;
    }
    Ok(())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_ne_bytes(value)).collect()
}

#[test]
fn b23_a_get_through_a_view_reads_the_views_own_bytes() {
    World::threads(2)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let comm = team.stream("comm", &team.timeline())?;
            let x = team.allocate(4 * ROW)?;
            fill(&x, team.rank())?;
            team.barrier()?;
            let peer = 1 - team.rank();
            let get = |view: &Symmetric, offset, len| {
                let mut into = Slot::new("got", vec![0u8; len]).fill(label(), &comm);
                view.get(&comm, label(), peer, vec![Piece::first(len, offset)], &mut into)?;
                Ok::<_, Error>(into.finish(&comm)?.read()?.clone())
            };
            let right = |row: usize| (10 * peer + row) as f32;
            let (third, fourth) = (x.view(2 * ROW, ROW)?, x.view(3 * ROW, ROW)?);
            assert_eq!(floats(&get(&third, 0, ROW)?), [right(2); 1024]);
            assert_eq!(floats(&get(&x, 0, ROW)?), [right(0); 1024]);
            let half = fourth.view(ROW / 2, ROW / 2)?;
            assert_eq!(floats(&get(&half, 0, ROW / 2)?), [right(3); 512]);
            assert_eq!(floats(&get(&x.view(ROW, 2 * ROW)?, ROW - 4, 8)?), [right(1), right(2)]);
            assert_eq!(get(&half, ROW / 2, 0)?, [] as [u8; 0]);
            assert_eq!(get(&x.view(4 * ROW, 0)?, 0, 0)?, [] as [u8; 0]);
            team.barrier()
        })
        .unwrap();
}

#[test]
fn b23_memory_allocated_anew_gives_new_data() {
    World::threads(2)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            for round in 0..50u8 {
                let x = team.allocate(4096)?;
                let mut first = [1];
                x.read(1 - team.rank(), 4095, &mut first)?;
                assert_eq!(first, [0], "new memory is zeroed");
                team.barrier()?;
                x.write(team.rank(), 0, &[round ^ team.rank() as u8; 4096])?;
                team.barrier()?;
                let mut got = vec![0; 4096];
                x.read(1 - team.rank(), 0, &mut got)?;
                assert_eq!(got, [round ^ (1 - team.rank()) as u8; 4096]);
                x.free()?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn puts_from_all_pes_land_where_they_are_sent() {
    World::threads(4)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let comm = team.stream("comm", &team.timeline())?;
            let buffer = team.allocate(4 * 100)?;
            let me = team.rank();
            let from = Pending::ready("from", vec![me as u8 + 1; 100]);
            let loan = from.on(label(), &comm);
            for peer in 0..4 {
                buffer.put(&comm, label(), peer, vec![Piece::first(100, me * 100)], &loan)?;
            }
            loan.give_back(&comm)?;
            team.quiet(&comm, label())?.synchronize().unwrap();
            team.barrier()?;
            let mut got = vec![0; 400];
            buffer.read(me, 0, &mut got)?;
            assert!(got.chunks(100).zip(1..).all(|(part, writer)| part == [writer; 100]));
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn a_transfer_beyond_its_view_is_refused() {
    let error = World::threads(1)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let view = team.allocate(64)?.view(16, 32)?;
            let beyond = |result: Result<(), Error>, what: &str| match result {
                Err(Error::OutOfRange { size: 32, .. }) => {}
                other => panic!("{what}: {other:?}"),
            };
            beyond(view.read(0, 0, &mut [0; 33]), "too long");
            beyond(view.write(0, 32, &[1]), "behind");
            beyond(view.read(0, usize::MAX, &mut [0; 2]), "an offset that overflows");
            beyond(view.view(30, 3).map(drop), "a view of a view");
            let comm = team.stream("comm", &team.timeline())?;
            let mut into = Slot::new("into", vec![0; 8]).fill(label(), &comm);
            let get = |len, offset, into: &mut _| {
                view.get(&comm, label(), 0, vec![Piece::first(len, offset)], into)
            };
            beyond(get(8, 33, &mut into), "a get, at once");
            assert!(matches!(view.read(1, 0, &mut []), Err(Error::NoSuchRank { rank: 1, size: 1 })));
            get(9, 0, &mut into)?;
            let error = into.finish(&comm)?.read().unwrap_err();
            assert!(matches!(error.into(), Error::OutOfRange { len: 9, size: 8, .. }));
            Ok::<_, Error>(())
        })
        .unwrap_err();
    // What fails on a stream is the world's failure, whatever its host makes of it.
    assert!(error.to_string().contains("reach beyond the buffer's 8 bytes"), "{error}");
}

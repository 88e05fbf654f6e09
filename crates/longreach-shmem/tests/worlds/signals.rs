//! Signals, and what they order.

use crate::OnAll;
use crate::{DEADLINE, label};
use longreach_device::{Pending, Slot};
use longreach_shmem::{Error, Operation, Piece, World};

const WAIT: Operation = Operation::outside("test signal");

#[test]
fn a_set_never_lowers_a_word() {
    let values = World::threads(4)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let signals = team.signals(2)?;
            for value in (0..1000).rev() {
                signals.set(0, 1, value * 4 + team.rank() as u64)?;
            }
            team.barrier()?;
            signals.set(0, 1, 1)?;
            team.barrier()?;
            Ok::<_, Error>([signals.load(0)?, signals.load(1)?])
        })
        .unwrap();
    assert_eq!(values, [[0, 3999], [0, 0], [0, 0], [0, 0]]);
}

#[test]
fn adds_of_all_pes_add_up() {
    let values = World::threads(4)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let (signals, stream) = (team.signals(1)?, team.stream("comm", &team.timeline())?);
            for _ in 0..250 {
                signals.add(2, 0, 1)?;
                signals.add_on(&stream, label(), 2, 0, 2)?;
            }
            stream.synchronize()?;
            team.barrier()?;
            signals.load(0)
        })
        .unwrap();
    assert_eq!(values, [0, 0, 3000, 0]);
}

/// A ring of puts with signals, 100 times round; who waits for the signal finds the bytes.
#[test]
fn a_signal_comes_after_the_bytes_that_it_announces() {
    World::threads(3)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let comm = team.stream("comm", &team.timeline())?;
            let (buffer, signals) = (team.allocate(1000)?, team.signals(1)?);
            let (next, previous) = ((team.rank() + 1) % 3, (team.rank() + 2) % 3);
            let mut slot = Slot::new("hand", vec![0u8; 1000]);
            for round in 1..=100u64 {
                let mut hand = slot.fill(label(), &comm);
                if team.rank() > 0 || round > 1 {
                    let awaited = if team.rank() == 0 { round - 1 } else { round };
                    signals.wait_on(&comm, label(), 0, awaited, previous, "comm", WAIT)?;
                    buffer.get(&comm, label(), team.rank(), vec![Piece::first(1000, 0)], &mut hand)?;
                }
                comm.launch(label(), (&mut hand,), |(hand,)| {
                    assert!(hand.iter().all(|byte| *byte == hand[0]), "all bytes of one put");
                    hand.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                    Ok(())
                })?;
                let pending = hand.finish(&comm)?;
                let loan = pending.on(label(), &comm);
                buffer.put_signal(
                    &comm,
                    label(),
                    next,
                    vec![Piece::first(1000, 0)],
                    &loan,
                    &signals,
                    0,
                    round,
                )?;
                loan.give_back(&comm)?;
                slot = pending.reuse()?;
            }
            comm.synchronize()?;
            team.barrier()?;
            if team.rank() == 0 {
                let mut last = [0];
                buffer.read(0, 999, &mut last)?;
                assert_eq!(u64::from(last[0]), 300 % 256);
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn a_fence_keeps_puts_before_it_ahead_of_signals_after_it() {
    World::threads(2)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let comm = team.stream("comm", &team.timeline())?;
            let (buffer, signals) = (team.allocate(2 * 64)?, team.signals(1)?);
            let (me, peer) = (team.rank(), 1 - team.rank());
            for (half, value) in [(0, 7u8), (1, 9)] {
                let from = Pending::ready("from", vec![value; 64]);
                let loan = from.on(label(), &comm);
                buffer.put(&comm, label(), peer, vec![Piece::first(64, half * 64)], &loan)?;
                loan.give_back(&comm)?;
            }
            team.fence(&comm, label())?;
            signals.set_on(&comm, label(), &[peer], 0, 1)?;
            signals.wait(0, 1, "host", peer, "comm", WAIT)?;
            let mut got = [0; 128];
            buffer.read(me, 0, &mut got)?;
            assert_eq!((&got[..64], &got[64..]), (&[7; 64][..], &[9; 64][..]));
            let quiet = team.quiet(&comm, label())?;
            quiet.synchronize().unwrap();
            assert!(matches!(quiet.query(), Some(Ok(()))));
            team.barrier()
        })
        .unwrap();
}

#[test]
fn a_barrier_on_a_stream_holds_its_later_work_back() {
    World::threads(3)
        .unwrap()
        .with_deadline(10 * DEADLINE)
        .on_all(|pe| {
            let team = pe.team()?;
            let comm = team.stream("comm", &team.timeline())?;
            let signals = team.signals(3)?;
            for round in 1..=20 {
                for peer in 0..3 {
                    signals.set_on(&comm, label(), &[peer], team.rank(), round)?;
                }
                team.barrier_on(&comm, label())?;
                let seen = signals.clone();
                comm.launch(label(), (), move |()| {
                    for word in 0..3 {
                        assert!(seen.load(word).unwrap() >= round);
                    }
                    Ok(())
                })?;
            }
            comm.synchronize()?;
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn words_that_do_not_exist_are_refused() {
    World::threads(1)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            let (signals, comm) = (team.signals(2)?, team.stream("comm", &team.timeline())?);
            let refused = |result: Result<(), Error>| {
                assert!(matches!(result, Err(Error::OutOfRange { offset: 2, size: 2, .. })))
            };
            refused(signals.set(0, 2, 1));
            refused(signals.add(0, 2, 1));
            refused(signals.set_on(&comm, label(), &[0], 2, 1));
            refused(signals.add_on(&comm, label(), 0, 2, 1));
            refused(signals.wait(2, 1, "host", 0, "host", WAIT));
            refused(signals.wait_on(&comm, label(), 2, 1, 0, "host", WAIT));
            refused(signals.load(2).map(drop));
            Ok::<_, Error>(())
        })
        .unwrap();
}

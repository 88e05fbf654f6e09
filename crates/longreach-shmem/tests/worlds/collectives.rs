//! Collective calls that do not fit together end in an error on every PE, never in a hang.

use crate::{DEADLINE, errors};
use longreach_shmem::{Error, FailureKind, World};
use std::time::{Duration, Instant};

/// A member finds the disagreement itself, or hears of it from one that was quicker.
fn all_say(ends: &[Option<Error>], words: &str) {
    let says = |end: &Option<Error>| end.as_ref().is_some_and(|end| end.to_string().ends_with(words));
    assert!(ends.iter().all(says), "{words}: {ends:?}");
}

#[test]
fn b21_calls_in_different_orders_are_named() {
    for pes in [2, 4] {
        let (_, ends) = errors(&World::threads(pes).unwrap(), |pe| {
            let team = pe.team()?;
            if pe.number() == 1 {
                team.barrier()?;
                team.allocate(64)?;
            } else {
                team.allocate(64)?;
                team.barrier()?;
            }
            Ok(())
        });
        let said = "PEs of a team are in different collective calls: team rank 0 in symmetric allocation, team rank 1 in barrier; all must make the same calls in the same order";
        all_say(&ends, said);
    }
}

#[test]
fn b21_teams_made_in_different_orders_are_a_deadlock_that_is_named() {
    let began = Instant::now();
    let (error, ends) = errors(&World::threads(2).unwrap(), |pe| {
        let (here, there) = ([0, 1], [1, 0]);
        let order: [&[usize]; 2] = if pe.number() == 0 { [&here, &there] } else { [&there, &here] };
        order.iter().try_for_each(|ranks| pe.team_of(ranks).map(drop))
    });
    // Ten seconds at most, twice where processes are tested too.
    assert!(began.elapsed() < Duration::from_secs(20));
    let Error::Failed(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.kind, FailureKind::Deadlock);
    let said = error.to_string();
    assert!(said.contains("team creation") && said.contains("wait for each other"), "{said}");
    assert!(ends.iter().all(|end| end.as_ref().is_some_and(|end| end.to_string() == said)), "{ends:?}");
}

#[test]
fn sizes_that_differ_are_named() {
    let (_, ends) = errors(&World::threads(3).unwrap(), |pe| {
        pe.team()?.allocate(if pe.number() == 2 { 128 } else { 64 }).map(drop)
    });
    let said = "the size of a symmetric allocation differs between PEs: team rank 0 gave 64, team rank 2 gave 128; all must give the same";
    all_say(&ends, said);

    let (_, ends) = errors(&World::threads(2).unwrap(), |pe| pe.team()?.signals(pe.number()).map(drop));
    all_say(
        &ends,
        "the number of signals differs between PEs: team rank 0 gave 0, team rank 1 gave 1; all must give the same",
    );
}

#[test]
fn memory_that_cannot_be_had_is_an_error_on_all() {
    let (_, ends) = errors(&World::threads(2).unwrap(), |pe| pe.team()?.allocate(usize::MAX / 2).map(drop));
    let bytes = usize::MAX / 2;
    for end in ends {
        let Some(Error::OutOfMemory { rank: 0, bytes: asked, .. }) = end else { panic!("{end:?}") };
        assert_eq!(asked, bytes);
    }
}

#[test]
fn b21_a_named_world_is_one_world() {
    let first = World::named_threads("b21", 2).unwrap();
    let again = World::named_threads("b21", 2).unwrap();
    assert_eq!(first.origin(), again.origin());
    let error = World::named_threads("b21", 3).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "world `b21` exists with 2 PEs as threads and was asked for again with 3 PEs as threads: use another name, or ask for 2 PEs as threads"
    );
    assert_ne!(World::threads(2).unwrap().origin(), first.origin());
    drop((first, again));
    assert_eq!(World::named_threads("b21", 3).unwrap().pes(), 3, "the name is free again");
    for pes in [0, longreach_shmem::MOST_PES + 1] {
        let error = World::threads(pes).map(drop).unwrap_err();
        assert_eq!(error.to_string(), format!("a world of {pes} PEs was asked for: it has from 1 to 1024"));
    }
}

#[test]
fn b21_a_world_can_be_run_again_and_made_again() {
    for _ in 0..2 {
        let world = World::named_threads("again", 2).unwrap();
        for round in 0..3u8 {
            world
                .run(|pe| {
                    let team = pe.team()?;
                    let buffer = team.allocate(1)?;
                    buffer.write(1 - team.rank(), 0, &[10 * round + team.rank() as u8])?;
                    team.barrier()?;
                    let mut byte = [0];
                    buffer.read(team.rank(), 0, &mut byte)?;
                    assert_eq!(byte, [10 * round + 1 - team.rank() as u8]);
                    // Every second time the buffer is left to its last handle.
                    if round % 2 == 0 { buffer.free() } else { Ok(()) }
                })
                .unwrap();
        }
    }
}

#[test]
fn b21_a_pe_may_leave_early_and_live_buffers_hold_nobody() {
    let began = Instant::now();
    let kept = World::threads(2)
        .unwrap()
        .with_deadline(DEADLINE)
        .run(|pe| {
            let buffer = pe.team()?.allocate(1 << 20)?;
            if pe.number() == 1 {
                std::thread::sleep(3 * DEADLINE);
            }
            Ok::<_, Error>(buffer)
        })
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(kept.len(), 2);
}

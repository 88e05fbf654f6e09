//! Deadlines: who is blamed, and who is not.

use crate::OnAll;
use crate::{DEADLINE, errors, label};
use longreach_shmem::{Error, Failure, FailureKind, Operation, World};
use std::thread::sleep;
use std::time::{Duration, Instant};

const WAIT: Operation = Operation::outside("test signal");

fn failure(error: &Error) -> &Failure {
    let Error::Failed(failure) = error else { panic!("{error}") };
    failure
}

fn same_on_all(error: &Error, ends: &[Option<Error>]) {
    let same = |end: &Option<Error>| end.as_ref().is_some_and(|end| end.to_string() == error.to_string());
    assert!(ends.iter().all(same), "{error}: {ends:?}");
}

#[test]
fn a_stalled_pe_is_blamed_through_those_that_wait_for_it() {
    let world = World::threads(4).unwrap().with_deadline(DEADLINE);
    let began = Instant::now();
    let (error, ends) = errors(&world, |pe| {
        let team = pe.team()?;
        let signals = team.signals(1)?;
        match pe.number() {
            0 => Ok(()),
            1 => {
                sleep(4 * DEADLINE);
                signals.set(2, 0, 1)
            }
            // 3 waits for 2, which waits for 1.
            me => {
                signals.wait(0, 1, "host", me - 1, "host", WAIT)?;
                signals.set((me + 1) % 4, 0, 1)
            }
        }
    });
    let found = failure(&error);
    assert_eq!((found.kind, found.pe), (FailureKind::Stalled, 1));
    assert_eq!(found.operation, WAIT);
    assert!(found.waited >= DEADLINE && found.waited < 4 * DEADLINE, "{error}");
    assert!(
        error.to_string().starts_with("PE 1 stalled during test signal, stage 0, epoch 0, after 0."),
        "{error}"
    );
    assert!(ends[0].is_none());
    same_on_all(&error, &ends[1..]);
    // Twice, where processes are tested too.
    assert!(began.elapsed() < 16 * DEADLINE);
}

#[test]
fn a_chain_through_streams_and_hosts_ends_at_the_one_that_sleeps() {
    let world = World::threads(4).unwrap().with_deadline(DEADLINE);
    let (error, ends) = errors(&world, |pe| {
        let team = pe.team()?;
        let signals = team.signals(1)?;
        let timeline = team.timeline();
        let (comm, compute) = (team.stream("comm", &timeline)?, team.stream("compute", &timeline)?);
        match pe.number() {
            // 3's compute stream waits for its comm stream, that for 2's, that for 1's, whose host sleeps.
            3 | 2 => {
                let peer = pe.number() - 1;
                signals.wait_on(&comm, label(), 0, 1, peer, "comm", WAIT)?;
                compute.wait(label(), &comm.record());
                team.host_waits("compute", || compute.synchronize())?;
                Ok(())
            }
            1 => {
                sleep(4 * DEADLINE);
                team.check()
            }
            _ => team.barrier(),
        }
    });
    assert_eq!((failure(&error).kind, failure(&error).pe), (FailureKind::Stalled, 1), "{error}");
    same_on_all(&error, &ends);
}

#[test]
fn a_barrier_blames_the_one_that_is_missing() {
    let world = World::threads(3).unwrap().with_deadline(DEADLINE);
    let (error, ends) = errors(&world, |pe| {
        let team = pe.team()?;
        if pe.number() == 2 {
            sleep(4 * DEADLINE);
        }
        team.barrier()
    });
    assert!(error.to_string().starts_with("PE 2 stalled during barrier"), "{error}");
    same_on_all(&error, &ends);
}

#[test]
fn a_signal_waiter_that_is_itself_in_a_barrier_is_not_blamed() {
    let world = World::threads(3).unwrap().with_deadline(DEADLINE);
    let (error, _) = errors(&world, |pe| {
        let team = pe.team()?;
        let signals = team.signals(1)?;
        match pe.number() {
            0 => signals.wait(0, 1, "host", 1, "host", WAIT),
            1 => {
                // Hosts are one node, whether they wait for a signal or in a collective call.
                signals.wait(0, 1, "host", 2, "host", WAIT)?;
                signals.set(0, 0, 1)
            }
            _ => {
                sleep(4 * DEADLINE);
                signals.set(1, 0, 1)
            }
        }
    });
    assert_eq!(failure(&error).pe, 2, "{error}");
}

#[test]
fn a_stall_shorter_than_the_deadline_changes_nothing() {
    World::threads(3)
        .unwrap()
        .with_deadline(5 * DEADLINE)
        .on_all(|pe| {
            let team = pe.team()?;
            for round in 0..3 {
                if pe.number() == round {
                    sleep(DEADLINE / 2);
                }
                team.barrier()?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn progress_starts_the_deadline_again() {
    World::threads(2)
        .unwrap()
        .with_deadline(2 * DEADLINE)
        .on_all(|pe| {
            let team = pe.team()?;
            if pe.number() == 1 {
                for _ in 0..12 {
                    sleep(DEADLINE / 2);
                    team.tick();
                }
            }
            team.barrier()
        })
        .unwrap();
}

#[test]
fn a_pe_that_ended_is_named_soon() {
    let world = World::threads(2).unwrap();
    let began = Instant::now();
    let (error, _) = errors(&world, |pe| {
        let team = pe.team()?;
        if pe.number() == 1 { Ok(()) } else { team.barrier() }
    });
    assert_eq!((failure(&error).kind, failure(&error).pe), (FailureKind::Left, 1));
    assert!(error.to_string().contains("its program has ended"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "not the whole deadline");
}

#[test]
fn streams_that_wait_for_each_other_are_a_circle() {
    let world = World::threads(3).unwrap().with_deadline(DEADLINE);
    let (error, ends) = errors(&world, |pe| {
        let team = pe.team()?;
        let signals = team.signals(1)?;
        let next = (team.rank() + 1) % 3;
        signals.wait(0, 1, "host", next, "host", WAIT)?;
        signals.set((team.rank() + 2) % 3, 0, 1)
    });
    assert_eq!(failure(&error).kind, FailureKind::Deadlock, "{error}");
    assert!(error.to_string().contains("wait for each other"), "{error}");
    same_on_all(&error, &ends);
}

#[test]
fn a_stream_that_outlives_its_program_is_not_to_blame() {
    let world = World::threads(3).unwrap().with_deadline(10 * DEADLINE);
    let kept = world.run(|pe| {
        let team = pe.team()?;
        let (signals, comm) = (team.signals(1)?, team.stream("comm", &team.timeline())?);
        match pe.number() {
            // Returns with its stream, which still waits for PE 2 and then signals PE 0.
            1 => {
                signals.wait_on(&comm, label(), 0, 1, 2, "host", WAIT)?;
                signals.set_on(&comm, label(), &[0], 0, 1)?;
            }
            // Longer than an ended PE is given, shorter than the deadline.
            2 => {
                sleep(7 * DEADLINE);
                signals.set(1, 0, 1)?;
            }
            _ => signals.wait(0, 1, "host", 1, "comm", WAIT)?,
        }
        Ok::<_, Error>(comm)
    });
    assert_eq!(kept.map(|streams| streams.len()).unwrap(), 3);
}

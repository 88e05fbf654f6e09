//! Failures: one PE's words reach all.

use crate::OnAll;
use crate::{errors, label, timeless};
use longreach_device::sync::Mutex;
use longreach_shmem::{Error, FailureKind, Operation, World};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
enum Ours {
    #[error("the tide is out")]
    Tide,
    #[error("{0}")]
    Shmem(String),
}

impl From<Error> for Ours {
    fn from(error: Error) -> Self {
        Ours::Shmem(timeless(&error))
    }
}

#[test]
fn an_error_of_one_pe_is_the_error_of_all() {
    let world = World::threads(4).unwrap();
    let ends = Mutex::new(vec![None; 4]);
    let began = Instant::now();
    let error = world
        .on_all(|pe| {
            let program = || {
                let team = pe.team()?;
                if pe.number() == 2 {
                    return Err(Ours::Tide);
                }
                Ok::<_, Ours>(team.barrier()?)
            };
            program().inspect_err(|error| ends.lock().unwrap()[pe.number()] = Some(error.clone()))
        })
        .unwrap_err();
    assert_eq!(error, Ours::Tide, "the run's error is that of the PE to blame");
    let theirs =
        Some(Ours::Shmem("PE 2 failed during its program, stage 0, epoch 0: the tide is out".to_owned()));
    assert_eq!(*ends.lock().unwrap(), [theirs.clone(), theirs.clone(), Some(Ours::Tide), theirs]);
    assert!(began.elapsed() < Duration::from_secs(5), "at once");
}

#[test]
fn a_panic_reaches_all_in_its_own_words() {
    let (error, ends) = errors(&World::threads(3).unwrap(), |pe| {
        let team = pe.team()?;
        assert!(pe.number() != 0, "PE 0 has had enough");
        team.barrier()
    });
    assert_eq!(
        timeless(&error),
        "PE 0 failed during its program, stage 0, epoch 0: it panicked: PE 0 has had enough"
    );
    assert!(
        ends[1..].iter().all(|end| { end.as_ref().is_some_and(|end| end.to_string() == error.to_string()) })
    );
}

#[test]
fn a_failure_releases_waits_on_streams() {
    let (_, ends) = errors(&World::threads(2).unwrap(), |pe| {
        let team = pe.team()?;
        let (signals, comm) = (team.signals(1)?, team.stream("comm", &team.timeline())?);
        if pe.number() == 1 {
            return Err(team.refuse("not today"));
        }
        signals.wait_on(&comm, label(), 0, 1, 1, "comm", Operation::outside("test signal"))?;
        Ok(comm.synchronize()?)
    });
    let words: Vec<_> = ends.iter().flatten().map(timeless).collect();
    assert_eq!(words, ["PE 1 refused during its program, stage 0, epoch 0: not today"; 2]);
}

#[test]
fn nothing_leaves_a_pe_after_the_failure_and_the_world_stays_failed() {
    let world = World::threads(2).unwrap();
    let (error, _) = errors(&world, |pe| {
        let team = pe.team()?;
        let (buffer, signals) = (team.allocate(8)?, team.signals(1)?);
        if pe.number() == 0 {
            let poison = team.refuse("stop");
            assert!(buffer.write(1, 0, &[1; 8]).is_err());
            assert!(signals.set(1, 0, 1).is_err());
            assert!(signals.add(1, 0, 1).is_err());
            assert_eq!(signals.load(0)?, 0);
            let mut bytes = [9; 8];
            buffer.read(1, 0, &mut bytes)?;
            assert_eq!(bytes, [0; 8]);
            return Err(poison);
        }
        team.barrier()
    });
    let Error::Failed(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.kind, failure.pe), (FailureKind::Refused, 0));
    assert_eq!(world.check().unwrap_err().to_string(), error.to_string());
    let again = world.run(|_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

#[test]
fn the_first_failure_counts() {
    let (error, ends) = errors(&World::threads(3).unwrap(), |pe| {
        let team = pe.team()?;
        if pe.number() == 1 {
            return Err(team.refuse("first"));
        }
        let waited = team.barrier().unwrap_err();
        Err(match team.refuse("second") {
            counts if counts.to_string() == waited.to_string() => counts,
            other => panic!("{other} after {waited}"),
        })
    });
    assert_eq!(timeless(&error), "PE 1 refused during its program, stage 0, epoch 0: first");
    assert!(ends.iter().all(|end| { end.as_ref().is_some_and(|end| end.to_string() == error.to_string()) }));
}

#[test]
fn a_world_that_runs_is_not_run_twice_at_once() {
    let world = World::threads(2).unwrap();
    let inner = world.clone();
    let results = world.run(move |pe| {
        let refused = inner.run(|_| Ok::<_, Error>(())).unwrap_err();
        pe.team()?.barrier()?;
        Ok::<_, Error>(matches!(refused, Error::Running { pes: 2 }))
    });
    assert_eq!(results.unwrap(), [true, true]);
    assert!(world.run(|_| Ok::<_, Error>(())).is_ok(), "the next one may");
}

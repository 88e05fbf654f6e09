//! Processes that are killed, stopped, or give up.

use crate::{one_at_a_time, rendezvous, run, sockets};
use longreach_forked::{Child, End, fork};
use longreach_shmem::{Error, Operation, Pe, Rendezvous};
use std::time::{Duration, Instant};

/// A small generator of numbers (splitmix64), so that a seed tells a test.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Allocations, signals, streams and barriers without end.
fn busy(pe: &Pe) -> Result<String, Error> {
    let team = pe.team()?;
    let signals = team.signals(team.size())?;
    let next = (team.rank() + 1) % team.size();
    let before = (team.rank() + team.size() - 1) % team.size();
    for round in 1.. {
        team.begins(Operation { name: "round", stage: Some(1), epoch: round });
        signals.set(next, team.rank(), round)?;
        let operation = Operation { name: "ring", stage: Some(1), epoch: round };
        signals.wait(before, round, "host", before, "host", operation)?;
        if round % 8 == 0 {
            team.allocate(4096)?.free()?;
        }
    }
    unreachable!("rounds without end")
}

fn start(rendezvous: &Rendezvous, program: fn(&Pe) -> Result<String, Error>) -> Vec<Child> {
    (0..rendezvous.pes).map(|pe| fork(|| run(rendezvous, pe, program))).collect()
}

fn text(end: End) -> String {
    match end {
        End::Returned(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_death_at_any_point_is_the_same_error_on_all_survivors_at_once() {
    let _one = one_at_a_time();
    let mut random = Random(7);
    for trial in 0..40 {
        let pes = 2 + random.below(5) as usize;
        let victim = random.below(pes as u64) as usize;
        // One that dies before it has met the others is one that does not come.
        let rendezvous = Rendezvous { deadline: Duration::from_secs(1), ..rendezvous(pes) };
        let mut children = start(&rendezvous, busy);
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        let killed = children.remove(victim);
        killed.signal(9);
        let began = Instant::now();
        assert_eq!(killed.wait(), End::Signalled(9));
        let ends: Vec<String> = children.into_iter().map(Child::wait).map(text).collect();
        assert!(began.elapsed() < Duration::from_secs(2), "trial {trial}: {:?}", began.elapsed());
        let died = format!("PE {victim} died during");
        // Before there is a world each tells it in its own words.
        let named =
            |end: &String| end.contains(&died) || end.contains("PE 0 died") || end.contains("did not");
        assert!(ends.iter().all(named), "trial {trial}, PE {victim} of {pes}: {ends:?}");
        if ends[0].starts_with(&format!("-{died}")) {
            assert!(ends.iter().all(|end| *end == ends[0]), "trial {trial}: {ends:?}");
        }
    }
    assert_eq!(sockets(), 0);
}

#[test]
fn a_stopped_process_is_stalled_and_a_chain_leads_to_it() {
    let _one = one_at_a_time();
    let rendezvous = Rendezvous { deadline: Duration::from_secs(1), ..rendezvous(4) };
    let mut children = start(&rendezvous, busy);
    std::thread::sleep(Duration::from_millis(200));
    let stopped = children.remove(1);
    // SIGSTOP: it neither ends nor goes on.
    stopped.signal(19);
    let began = Instant::now();
    let ends: Vec<String> = children.into_iter().map(Child::wait).map(text).collect();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(ends.iter().all(|end| end.starts_with("-PE 1 stalled during") && *end == ends[0]), "{ends:?}");
    assert!(ends[0].contains(", stage ") && ends[0].contains(", epoch "), "{ends:?}");
}

#[test]
fn a_panic_and_an_error_reach_the_others_in_their_own_words() {
    let _one = one_at_a_time();
    let ends = |program: fn(&Pe) -> Result<String, Error>| {
        start(&rendezvous(3), program).into_iter().map(Child::wait).map(text).collect::<Vec<_>>()
    };
    let panicked = ends(|pe| {
        let team = pe.team()?;
        assert!(pe.number() != 2, "PE 2 has had enough");
        team.barrier().map(|()| String::new())
    });
    assert!(panicked.iter().all(|end| end.ends_with("it panicked: PE 2 has had enough")), "{panicked:?}");
    let refused = ends(|pe| {
        let team = pe.team()?;
        if pe.number() == 0 {
            return Err(team.refuse("not today"));
        }
        team.barrier().map(|()| String::new())
    });
    assert!(
        refused.iter().all(|end| end.contains("PE 0 refused during") && end.ends_with("not today")),
        "{refused:?}"
    );
}

#[test]
fn one_that_has_finished_learns_of_a_later_death() {
    let _one = one_at_a_time();
    let mut children = start(&rendezvous(3), |pe| {
        let team = pe.team()?;
        team.barrier()?;
        if pe.number() == 1 {
            std::thread::sleep(Duration::from_secs(60));
        }
        Ok("done".to_owned())
    });
    std::thread::sleep(Duration::from_millis(300));
    children.remove(1).signal(9);
    for end in children.into_iter().map(Child::wait).map(text) {
        assert!(end.starts_with("-PE 1 died during its program"), "{end}");
    }
}

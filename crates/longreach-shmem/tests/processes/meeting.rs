//! Worlds that come together, are left, and come together again.

use crate::{one_at_a_time, rendezvous, run, sockets, sum};
use longreach_forked::{End, fork, forked};
use longreach_shmem::{Error, Rendezvous, World};
use std::time::{Duration, Instant};

fn said(ends: Vec<End>) -> Vec<String> {
    let text = |end| match end {
        End::Returned(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    };
    ends.into_iter().map(text).collect()
}

#[test]
fn worlds_of_any_size_meet_and_leave_nothing() {
    let _one = one_at_a_time();
    for pes in [1, 2, 3, 5, 16] {
        let rendezvous = rendezvous(pes);
        let ends = said(forked(pes, |pe| run(&rendezvous, pe, sum)));
        assert_eq!(ends, vec![(pes * (pes + 1) / 2).to_string(); pes]);
    }
    assert_eq!(sockets(), 0);
}

#[test]
fn two_hundred_worlds_in_a_row_leak_nothing() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let ends = said(forked(2, |pe| {
        let descriptors = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        let mappings = || {
            std::fs::read_to_string("/proc/self/maps").expect("mappings").matches("memfd:longreach").count()
        };
        // The first one brings what stays, as standard streams.
        run(&rendezvous, pe, sum);
        let before = descriptors();
        for _ in 0..200 {
            assert_eq!(run(&rendezvous, pe, sum), b"3");
        }
        format!("{} {}", descriptors() - before, mappings()).into_bytes()
    }));
    assert_eq!(ends, ["0 0"; 2]);
    assert_eq!(sockets(), 0);
}

#[test]
fn a_pe_may_be_three_seconds_late() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(3);
    for late in [0, 2] {
        let began = Instant::now();
        let ends = said(forked(3, |pe| {
            if pe == late {
                std::thread::sleep(Duration::from_secs(3));
            }
            run(&rendezvous, pe, sum)
        }));
        assert_eq!(ends, ["6"; 3]);
        assert!(began.elapsed() < Duration::from_secs(8));
    }
}

#[test]
fn a_pe_that_does_not_come_is_named_by_all() {
    let _one = one_at_a_time();
    let rendezvous = Rendezvous { deadline: Duration::from_millis(500), ..rendezvous(4) };
    let began = Instant::now();
    let ends = said(forked(4, |pe| if pe == 2 { Vec::new() } else { run(&rendezvous, pe, sum) }));
    for pe in [0, 1, 3] {
        assert!(ends[pe].contains("PEs [2] did not come within 0.5 s"), "{}", ends[pe]);
    }
    let alone = said(forked(1, |_| run(&rendezvous, 1, sum)));
    assert!(alone[0].contains("PE 0 did not open the rendezvous within 0.5 s"), "{}", alone[0]);
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn worlds_at_once_do_not_meet_each_other() {
    let _one = one_at_a_time();
    // Two jobs, and two worlds of a job, the second of PEs in another order.
    let (one, two) = (rendezvous(3), rendezvous(3));
    let inner = Rendezvous { world: "inner".to_owned(), ..one.clone() };
    let ends = said(forked(6, |number| {
        let (pe, rendezvous) = (number % 3, if number < 3 { &one } else { &two });
        if number >= 3 {
            return run(rendezvous, pe, sum);
        }
        let outer = World::join(&Rendezvous { pe, ..one.clone() }).expect("the outer world");
        let inside = run(&inner, 2 - pe, |pe| Ok(format!("{} {}", pe.number(), sum(pe)?)));
        let outside = outer.run(sum).expect("a sum");
        [inside, b" ".to_vec(), outside[0].clone().into_bytes()].concat()
    }));
    assert_eq!(ends, ["2 6 6", "1 6 6", "0 6 6", "6", "6", "6"]);
}

#[test]
fn b21_joining_again_gives_the_same_world_and_another_shape_is_refused() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let ends = said(forked(2, |pe| {
        let own = Rendezvous { pe, ..rendezvous.clone() };
        let world = World::join(&own).expect("a world");
        let again = World::join(&own).expect("the same world");
        assert_eq!((world.origin(), world.own(), world.pes()), (again.origin(), Some(pe), 2));
        let others = [
            World::join(&Rendezvous { pes: 3, ..own.clone() }),
            World::join(&Rendezvous { pe: 1 - pe, ..own.clone() }),
            World::named_threads("w", 2),
        ];
        for other in others {
            assert!(matches!(other.map(drop), Err(Error::WorldExists { .. })));
        }
        drop(world);
        let sum = again.run(sum).expect("a sum");
        drop(again);
        // The name is free again: all join, allocate and exchange once more.
        [sum[0].clone().into_bytes(), run(&own, pe, crate::sum)].concat()
    }));
    assert_eq!(ends, ["33"; 2]);
}

#[test]
fn sizes_that_differ_are_an_error_on_both_that_names_them() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let ends = said(forked(2, |pe| run(&Rendezvous { pes: 2 + pe, ..rendezvous.clone() }, pe, sum)));
    for end in ends {
        assert!(end.contains("PE 1 was started for 3 PEs, PE 0 for 2"), "{end}");
    }
    let twice = said(forked(3, |pe| run(&Rendezvous { pes: 3, ..rendezvous.clone() }, pe.min(1), sum)));
    let named = twice.iter().filter(|end| end.contains("a second process says that it is PE 1 of 3")).count();
    assert!(named >= 2, "{twice:?}");
}

#[test]
fn b21_leaving_with_live_buffers_and_leaving_early_hold_nobody() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let began = Instant::now();
    let ends = forked(2, |pe| {
        let world = World::join(&Rendezvous { pe, ..rendezvous.clone() }).expect("a world");
        let kept = world.run(|pe| {
            let team = pe.team()?;
            let kept = (team.allocate(1 << 20)?, team.signals(4)?);
            team.barrier()?;
            Ok::<_, Error>(kept)
        });
        assert!(kept.is_ok());
        if pe == 1 {
            std::thread::sleep(Duration::from_secs(5));
        }
        // With the world and the buffers alive, and no word to anybody.
        std::process::exit(0)
    });
    assert_eq!(ends, [End::Exited(0), End::Exited(0)]);
    assert!(began.elapsed() < Duration::from_secs(8));
    assert_eq!(sockets(), 0);
}

#[test]
fn who_still_needs_one_that_left_is_told_so() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(3);
    let began = Instant::now();
    let ends = said(forked(3, |pe| {
        let world = World::join(&Rendezvous { pe, ..rendezvous.clone() }).expect("a world");
        let result = world.run(|pe| {
            let team = pe.team()?;
            if pe.number() == 1 {
                world.leave();
                return Ok(());
            }
            team.barrier()
        });
        result.map_or_else(|error| error.to_string(), |_| String::new()).into_bytes()
    }));
    for pe in [0, 2] {
        assert!(ends[pe].starts_with("PE 1 left during barrier"), "{ends:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_run_without_one_that_is_gone_fails_at_once() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let pe = |pe| Rendezvous { pe, ..rendezvous.clone() };
    let first = fork(|| {
        let world = World::join(&pe(0)).expect("a world");
        world.run(sum).expect("a sum");
        std::thread::sleep(Duration::from_millis(300));
        world.run(sum).expect_err("a world of one").to_string().into_bytes()
    });
    let second = fork(|| run(&pe(1), 1, sum));
    assert_eq!(second.wait(), End::Returned(b"3".to_vec()));
    let End::Returned(text) = first.wait() else { panic!("PE 0") };
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("PE 1 died") && text.contains("has ended before this run"), "{text}");
}

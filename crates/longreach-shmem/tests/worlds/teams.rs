//! Teams: some PEs, in an order of their own.

use crate::OnAll;
use longreach_shmem::{Error, Operation, Pe, Team, World};

/// Every member learns every member's number through symmetric memory; returns them in team order.
fn roll_call(pe: &Pe, team: &Team) -> Result<Vec<u8>, Error> {
    let (buffer, signals) = (team.allocate(team.size())?, team.signals(1)?);
    for rank in 0..team.size() {
        buffer.write(rank, team.rank(), &[pe.number() as u8])?;
        signals.add(rank, 0, 1)?;
    }
    let all = team.size() as u64;
    // Nobody in particular is to blame for a missing one: the next member stands for all.
    let next = (team.rank() + 1) % team.size();
    signals.wait(0, all, "host", next, "host", Operation::outside("roll call"))?;
    let mut numbers = vec![0; team.size()];
    buffer.read(team.rank(), 0, &mut numbers)?;
    buffer.free()?;
    Ok(numbers)
}

#[test]
fn a_team_is_any_pes_in_any_order() {
    let teams: [&[usize]; 5] = [&[0, 1, 2, 3, 4], &[3, 1], &[4, 2, 0], &[4, 3, 2, 1, 0], &[2]];
    for ranks in teams {
        let seen = World::threads(5)
            .unwrap()
            .on_all(|pe| {
                if !ranks.contains(&pe.number()) {
                    return Ok(None);
                }
                let team = pe.team_of(ranks)?;
                assert_eq!(team.ranks()[team.rank()], pe.number());
                roll_call(pe, &team).map(Some)
            })
            .unwrap();
        let expected: Vec<u8> = ranks.iter().map(|&rank| rank as u8).collect();
        for (pe, seen) in seen.into_iter().enumerate() {
            assert_eq!(seen, ranks.contains(&pe).then(|| expected.clone()), "{ranks:?}");
        }
    }
}

#[test]
fn disjoint_teams_work_at_once_and_overlapping_ones_in_turn() {
    World::threads(4)
        .unwrap()
        .on_all(|pe| {
            let all = pe.team()?;
            let (even, odd) = ([2, 0], [1, 3]);
            let half: &[usize] = if pe.number() % 2 == 0 { &even } else { &odd };
            let mine = pe.team_of(half)?;
            for _ in 0..20 {
                assert_eq!(roll_call(pe, &mine)?, half.iter().map(|&rank| rank as u8).collect::<Vec<_>>());
            }
            assert_eq!(roll_call(pe, &all)?, [0, 1, 2, 3]);
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn teams_of_the_same_pes_have_their_own_words() {
    let values = World::threads(2)
        .unwrap()
        .on_all(|pe| {
            let (first, second) = (pe.team()?, pe.team()?);
            let (a, b) = (first.signals(1)?, second.signals(1)?);
            a.set(1 - pe.number(), 0, 5)?;
            first.barrier()?;
            Ok::<_, Error>((a.load(0)?, b.load(0)?))
        })
        .unwrap();
    assert_eq!(values, [(5, 0), (5, 0)]);
}

#[test]
fn what_is_no_team_is_refused() {
    for (ranks, reason) in [
        (&[0usize, 2][..], "a rank is not a PE of the world"),
        (&[0, 1, 0], "a PE is named twice"),
        (&[1], "the PE that asks is not in it"),
        (&[], "the PE that asks is not in it"),
    ] {
        let world = World::threads(2).unwrap();
        let error = world
            .on_all(|pe| {
                if pe.number() == 0 {
                    pe.team_of(ranks)?;
                }
                Ok::<_, Error>(())
            })
            .unwrap_err();
        let said = error.to_string();
        assert!(said.contains(reason) && said.contains(&format!("{ranks:?}")), "{said}");
    }
}

#[test]
fn a_member_that_the_team_does_not_have_is_named() {
    let error = World::threads(2)
        .unwrap()
        .on_all(|pe| {
            let team = pe.team()?;
            team.signals(1)?.set(2, 0, 1)
        })
        .unwrap_err();
    assert!(matches!(error, Error::NoSuchRank { rank: 2, size: 2 }), "{error}");
}

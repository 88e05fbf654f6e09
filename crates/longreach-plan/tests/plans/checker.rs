//! Counts what a plan computes and fetches, pair by pair and row by row.

use longreach_plan::{Plan, Request};
use std::collections::BTreeMap;

/// What is wrong with `plan`; empty where every visible pair is computed exactly once and nothing else, and no row
/// is fetched that no tile uses.
pub fn faults(plan: &Plan) -> Vec<String> {
    let mut faults = Vec::new();
    let mut counts: BTreeMap<(usize, usize, usize), u32> = BTreeMap::new();
    for pe in &plan.pes {
        let queries: Vec<usize> = plan.q_shards.positions(pe.pe).collect();
        let own: Vec<usize> = plan.kv_shards.positions(pe.pe).collect();
        if (queries.len(), own.len()) != (pe.q_rows, pe.kv_rows) {
            faults.push(format!("PE {} says that it holds {} and {} rows", pe.pe, pe.q_rows, pe.kv_rows));
        }
        for (number, stage) in pe.stages.iter().enumerate() {
            for batch in 0..plan.batch {
                // The global key in each row of the stage's buffer, and whether a tile uses it.
                let mut rows: Vec<Option<usize>> = vec![None; stage.rows];
                if number == 0 {
                    rows = own.iter().map(|&key| Some(key)).collect();
                }
                for get in stage.gets.iter().filter(|get| get.batch.contains(&batch)) {
                    if get.owner == pe.pe {
                        faults.push(format!("PE {} fetches from itself", pe.pe));
                    }
                    let held: Vec<usize> = plan.kv_shards.positions(get.owner).collect();
                    for (i, row) in get.rows.clone().enumerate() {
                        match rows.get_mut(get.at + i) {
                            Some(place @ None) => *place = Some(held[row]),
                            _ => faults.push(format!(
                                "PE {} stage {number}: row {} is written twice or outside",
                                pe.pe,
                                get.at + i
                            )),
                        }
                    }
                }
                let mut used = vec![false; rows.len()];
                for tile in stage.tiles.iter().filter(|tile| tile.batch.contains(&batch)) {
                    let keys: Vec<usize> = tile.kv.iter().cloned().flatten().collect();
                    for (t, q) in tile.q.clone().enumerate() {
                        let seen = tile.band.visible(t as i64, keys.len() as i64);
                        if tile.band.q != (0..tile.q.len() as i64) {
                            faults.push(format!(
                                "a tile of {} rows has a band of rows {:?}",
                                tile.q.len(),
                                tile.band.q
                            ));
                        }
                        for key in &keys[seen.start as usize..seen.end as usize] {
                            used[*key] = true;
                            match rows[*key] {
                                Some(key) => *counts.entry((batch, queries[q], key)).or_default() += 1,
                                None => faults
                                    .push(format!("PE {} stage {number}: row {key} was not fetched", pe.pe)),
                            }
                        }
                    }
                }
                let idle = rows.iter().zip(&used).filter(|(row, used)| row.is_some() && !**used).count();
                if number > 0 && idle > 0 {
                    faults.push(format!("PE {} stage {number}: {idle} rows are fetched in vain", pe.pe));
                }
            }
        }
    }
    let mut expected = 0;
    for batch in 0..plan.batch {
        for query in 0..plan.bands.q_len {
            for key in plan.bands.visible(batch, query).into_iter().flatten() {
                expected += 1;
                match counts.get(&(batch, query, key)) {
                    Some(1) => {}
                    other => faults.push(format!(
                        "batch {batch}: query {query} and key {key} are computed {other:?} times"
                    )),
                }
            }
        }
    }
    if counts.len() != expected {
        faults.push(format!("{} pairs are computed, {expected} are visible", counts.len()));
    }
    let pairs: u64 = plan.pes.iter().map(|pe| pe.visible_pairs()).sum();
    if u128::from(pairs) != plan.bands.visible_pairs(plan.batch) {
        faults.push(format!("tiles say that they hold {pairs} pairs, {expected} are visible"));
    }
    faults
}

/// The plan of a request that must succeed, without faults.
pub fn checked(request: &Request) -> Plan {
    let plan = Plan::new(request).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    let faults = faults(&plan);
    assert!(faults.is_empty(), "{request:?}: {:#?}\n{plan}", &faults[..faults.len().min(10)]);
    plan
}

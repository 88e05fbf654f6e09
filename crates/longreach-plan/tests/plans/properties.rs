//! Random masks, layouts, lengths and numbers of PEs.

use crate::checker::{checked, faults};
use longreach_plan::{Band, Documents, Edge, Layout, Mask, Request};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};
use std::cell::Cell;
use std::ops::Range;

/// The same cases each time.
fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(20_261_201),
        ..Config::default()
    }
}

fn layout(len: usize, pes: usize, explicit: bool) -> BoxedStrategy<Layout> {
    let cuts = proptest::collection::vec(0..=len as u64, 3 * pes);
    if !explicit {
        return prop_oneof![
            Just(Layout::Zigzag),
            Just(Layout::Contiguous),
            Just(Layout::Striped { block: 1 }),
            (2usize..9).prop_map(|block| Layout::Striped { block }),
        ]
        .boxed();
    }
    cuts.prop_map(move |mut cuts| {
        cuts.extend([0, len as u64]);
        cuts.sort_unstable();
        let mut ranges: Vec<Vec<Range<u64>>> = vec![Vec::new(); pes];
        // Dealt out backwards, so that ranges are in no order.
        for (i, pair) in cuts.windows(2).enumerate().collect::<Vec<_>>().into_iter().rev() {
            ranges[i % pes].push(pair[0]..pair[1]);
        }
        Layout::Ranges(ranges)
    })
    .boxed()
}

fn bounds(len: usize, documents: usize) -> impl Strategy<Value = Documents> {
    (proptest::collection::vec(0..=len as u64, documents * 2), any::<bool>()).prop_map(
        move |(mut cuts, gaps)| {
            cuts.sort_unstable();
            if gaps {
                return Documents::ranges(
                    cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect::<Vec<_>>(),
                );
            }
            let mut bounds: Vec<u64> = cuts.into_iter().take(documents - 1).collect();
            bounds.insert(0, 0);
            bounds.push(len as u64);
            Documents::cu_seqlens(bounds)
        },
    )
}

fn shape(len: usize) -> impl Strategy<Value = Mask> {
    let side = move || proptest::option::of(0..len as u64 + 3);
    prop_oneof![
        Just(Mask::causal()),
        Just(Mask::full()),
        (side(), side()).prop_map(|(left, right)| Mask::full().window(left, right)),
        side().prop_map(|left| Mask::causal().window(left, None)),
        (0..len as u64 + 2).prop_map(Mask::prefix_lm),
        (0..9u64, 0..len as u64 + 2).prop_map(|(sink, left)| Mask::sink_window(sink, left)),
    ]
}

/// Bands on rows of their own, or on the same rows with keys of their own.
fn bands(q_len: usize, kv_len: usize) -> impl Strategy<Value = Mask> {
    let edge = move || {
        let n = -(q_len as i64)..kv_len as i64 + 2;
        prop_oneof![n.clone().prop_map(Edge::Fixed), n.prop_map(Edge::Diagonal)]
    };
    (proptest::collection::vec((edge(), edge()), 1..5), 0..=kv_len as i64).prop_map(move |(edges, split)| {
        let rows = q_len as i64 / edges.len() as i64;
        let mut bands = Vec::new();
        for (i, (lo, hi)) in edges.into_iter().enumerate() {
            let q = i as i64 * rows..(i as i64 + 1) * rows;
            let half = |from, to| Band { q: q.clone(), lo: Edge::Fixed(from), hi: Edge::Fixed(to) };
            let whole = Band { q: q.clone(), lo, hi };
            bands.extend(whole.intersect(&half(0, split)));
            bands.extend(whole.intersect(&half(split, kv_len as i64)));
        }
        Mask::bands(bands)
    })
}

fn requests() -> impl Strategy<Value = Request> {
    let pes = prop_oneof![Just(1usize), Just(2), Just(3), Just(4), Just(5), Just(7), Just(8)];
    // Explicit ranges are for one length.
    let lens = prop_oneof![3 => Just((true, false)), 3 => Just((false, false)), 2 => Just((true, true))];
    (pes, 0usize..60, 0usize..60, lens, 1usize..4, 1usize..12, 0usize..4).prop_flat_map(
        |(pes, q_len, other, (same, explicit), batch, stages, documents)| {
            let kv_len = if same { q_len } else { other };
            let len = q_len.max(kv_len);
            let rows = if documents == 0 { 0 } else { 1 + (batch - 1) * usize::from(documents > 1) };
            let of = move |len| proptest::collection::vec(bounds(len, documents.max(1)), rows);
            let packed = (shape(len), of(q_len), of(kv_len)).prop_map(move |(mask, q, kv)| {
                let paired = q.iter().zip(&kv).all(|(q, kv)| q.count() == kv.count());
                match () {
                    () if q.is_empty() || !paired => mask,
                    () => mask.documents(q).kv_documents(kv),
                }
            });
            let mask = prop_oneof![3 => packed, 1 => bands(q_len.max(1), kv_len)];
            (mask, layout(len, pes, explicit)).prop_map(move |(mask, layout)| Request {
                batch,
                q_len,
                kv_len,
                pes,
                mask,
                layout,
                stages,
            })
        },
    )
}

#[test]
fn every_visible_pair_is_computed_once_and_no_row_is_fetched_in_vain() {
    let (seen, fetched) = (Cell::new(0), Cell::new(0));
    let count = |cell: &Cell<u64>, more: u64| cell.set(cell.get() + more);
    TestRunner::new(config(3000))
        .run(&requests(), |request| {
            // Bands may speak of a row more than there is where there is none.
            prop_assume!(request.mask.resolve(request.batch, request.q_len, request.kv_len).is_ok());
            let plan = checked(&request);
            count(&seen, plan.pes.iter().map(|pe| pe.visible_pairs()).sum());
            count(&fetched, plan.pes.iter().map(|pe| pe.rows_fetched()).sum());
            Ok(())
        })
        .unwrap();
    let (seen, fetched) = (seen.get(), fetched.get());
    assert!(seen > 100_000 && fetched > 10_000, "{seen} pairs, {fetched} rows: the cases say too little");
}

#[test]
fn the_checker_catches_a_dropped_tile_a_doubled_one_and_a_shifted_edge() {
    let request =
        |layout| Request { batch: 1, q_len: 50, kv_len: 50, pes: 3, mask: Mask::causal(), layout, stages: 2 };
    for layout in [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 1 }] {
        let right = checked(&request(layout));
        for pe in 0..3 {
            for stage in 0..right.pes[pe].stages.len() {
                for tile in 0..right.pes[pe].stages[stage].tiles.len() {
                    let mut dropped = right.clone();
                    dropped.pes[pe].stages[stage].tiles.remove(tile);
                    assert!(!faults(&dropped).is_empty());
                    let mut doubled = right.clone();
                    let tiles = &mut doubled.pes[pe].stages[stage].tiles;
                    tiles.push(tiles[tile].clone());
                    assert!(!faults(&doubled).is_empty());
                    let mut shifted = right.clone();
                    let band = &mut shifted.pes[pe].stages[stage].tiles[tile].band;
                    band.hi = match band.hi {
                        Edge::Fixed(n) => Edge::Fixed(n - 1),
                        Edge::Diagonal(n) => Edge::Diagonal(n - 1),
                    };
                    assert!(!faults(&shifted).is_empty());
                }
            }
        }
    }
}

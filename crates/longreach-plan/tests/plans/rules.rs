//! What plans promise: bytes, balance, order, stages.

use crate::checker::checked;
use longreach_plan::{Documents, Layout, Mask, Plan, Request};

fn request(pes: usize, len: usize, mask: Mask, layout: Layout, stages: usize) -> Request {
    Request { batch: 1, q_len: len, kv_len: len, pes, mask, layout, stages }
}

fn documents(lengths: &[u64]) -> Vec<Documents> {
    let mut bounds = vec![0];
    for len in lengths {
        bounds.push(bounds[bounds.len() - 1] + len);
    }
    vec![Documents::cu_seqlens(bounds)]
}

#[test]
fn zigzag_causal_fetches_three_quarters_of_a_ring() {
    for pes in [1, 2, 3, 4, 5, 7, 8] {
        for stages in [1, pes] {
            let len = 2 * pes * 6;
            let plan = checked(&request(pes, len, Mask::causal(), Layout::Zigzag, stages));
            let fetched: u64 = plan.pes.iter().map(|pe| pe.rows_fetched()).sum();
            assert_eq!(4 * fetched, 3 * plan.ring_rows(), "{pes} PEs");
            // Not for fewer tokens than chunks: one token a PE has nothing to halve.
            for len in [2 * pes, 2 * pes + 1, 3 * pes, 4 * pes - 1, len + 1, len + pes, len + 2 * pes - 1] {
                let plan = checked(&request(pes, len, Mask::causal(), Layout::Zigzag, stages));
                let chunk = len.div_ceil(2 * pes) as f64;
                let fetched: f64 = plan.pes.iter().map(|pe| pe.rows_fetched() as f64).sum();
                let off = (fetched - 0.75 * plan.ring_rows() as f64).abs();
                assert!(off <= chunk * pes as f64, "{pes} PEs, {len}: {off} rows off");
            }
        }
    }
}

#[test]
fn zigzag_causal_work_is_balanced_within_a_chunk() {
    for pes in [2, 3, 4, 5, 7, 8] {
        for len in [12 * pes, 12 * pes + 1, 12 * pes + pes, 14 * pes - 1] {
            let plan = checked(&request(pes, len, Mask::causal(), Layout::Zigzag, 1));
            let work: Vec<u64> = plan.pes.iter().map(|pe| pe.visible_pairs()).collect();
            let spread = work.iter().max().unwrap() - work.iter().min().unwrap();
            assert!(spread <= len as u64, "{pes} PEs, {len}: {work:?}");
            if len.is_multiple_of(2 * pes) {
                assert_eq!(spread, 0, "{pes} PEs, {len}: {work:?}");
            }
        }
    }
}

#[test]
fn a_window_fetches_its_halo_and_packed_documents_their_own_rows() {
    let plan = checked(&request(4, 64, Mask::causal().window(Some(5), None), Layout::Contiguous, 3));
    let fetched: Vec<u64> = plan.pes.iter().map(|pe| pe.rows_fetched()).collect();
    assert_eq!(fetched, [0, 5, 5, 5]);
    let plan = checked(&request(
        4,
        64,
        Mask::causal().documents(documents(&[16, 16, 16, 16])),
        Layout::Contiguous,
        3,
    ));
    assert!(plan.pes.iter().all(|pe| pe.rows_fetched() == 0));
}

#[test]
fn own_rows_of_zigzag_causal_are_two_tiles_and_remote_ones_one_or_two() {
    let plan = checked(&request(4, 64, Mask::causal(), Layout::Zigzag, 1));
    for pe in &plan.pes {
        // The last PE's two chunks are neighbours: one tile.
        assert_eq!(pe.stages[0].tiles.len(), if pe.pe == 3 { 1 } else { 2 });
        assert!(pe.stages[1].tiles.len() <= 2, "{pe}");
    }
}

#[test]
fn stages_are_cut_between_owners_and_then_within() {
    let stages = |stages| checked(&request(5, 400, Mask::full(), Layout::Zigzag, stages));
    for count in [1, 2, 3, 4, 5, 8, 11] {
        let plan = stages(count);
        assert!(plan.pes.iter().all(|pe| pe.stages.len() - 1 == count), "{count}");
    }
    // One owner a stage, nearest first.
    for pe in &stages(4).pes {
        for (number, stage) in pe.stages.iter().enumerate().skip(1) {
            assert!(stage.gets.iter().all(|get| get.owner == (pe.pe + number) % 5));
        }
    }
    // Two owners a stage.
    assert!(stages(2).pes.iter().all(|pe| pe.stages[1].rows == 160 && pe.stages[2].rows == 160));
    // Parts keep 32 rows or so: 80 rows of each of 4 owners are 3 parts each.
    assert_eq!(stages(1000).stages(), 12);
    // A PE with less to fetch has fewer stages.
    let causal = checked(&request(4, 64, Mask::causal(), Layout::Contiguous, 3));
    let counts: Vec<usize> = causal.pes.iter().map(|pe| pe.stages.len() - 1).collect();
    assert_eq!(counts[0], 0);
    assert!(counts[1] >= 1 && causal.stages() == 3, "{counts:?}");
}

#[test]
fn contributions_are_in_the_order_of_stage_and_writer_and_complete() {
    for layout in [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 3 }] {
        let plan = checked(&Request { batch: 2, ..request(5, 77, Mask::causal(), layout, 3) });
        for owner in 0..5 {
            let order: Vec<(usize, usize)> =
                plan.contributions(owner).iter().map(|c| (c.stage, c.writer)).collect();
            assert!(order.is_sorted() && order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
            let rows: usize = plan.contributions(owner).iter().map(|c| c.rows).sum();
            let gets = plan.pes.iter().flat_map(|pe| &pe.stages).flat_map(|stage| &stage.gets);
            let fetched: usize =
                gets.filter(|get| get.owner == owner).map(|get| get.rows.len() * get.batch.len()).sum();
            assert_eq!(rows, fetched);
            let readers: Vec<usize> = (0..5)
                .filter(|&pe| {
                    plan.pes[pe].stages.iter().flat_map(|stage| &stage.gets).any(|get| get.owner == owner)
                })
                .collect();
            assert_eq!(plan.readers(owner), readers);
        }
    }
}

#[test]
fn empty_documents_change_nothing() {
    for layout in [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 1 }] {
        let plan = |lengths: &[u64]| {
            let mask = Mask::causal().documents(documents(lengths));
            Plan::new(&request(4, 128, mask, layout.clone(), 2)).unwrap()
        };
        assert_eq!(plan(&[0, 37, 0, 63, 28, 0]), plan(&[37, 63, 28]));
    }
}

#[test]
fn shards_may_be_cut_by_other_than_the_documents() {
    // Documents of 5 and 2 tokens, padded to 8 and 4: both are cut with their padding.
    let cuts = || Documents::cu_seqlens([0, 8, 12]);
    let real = Mask::causal().documents(vec![Documents::ranges([0..5, 8..10])]);
    let mask = real.clone().cut(cuts(), cuts());
    let plan = Plan::new(&request(2, 12, mask.clone(), Layout::Zigzag, 1)).unwrap();
    assert_eq!(plan.q_shards.positions(0).collect::<Vec<_>>(), [0, 1, 6, 7, 8, 11]);
    assert_eq!(plan.q_shards, plan.kv_shards);
    let other = Plan::new(&request(2, 12, real, Layout::Zigzag, 1)).unwrap();
    assert_eq!(plan.bands, other.bands, "what is seen is the same");
    assert_ne!(plan.q_shards, other.q_shards);
    assert_eq!(mask.to_string(), "causal documents=2 cut=2");
    assert!(mask.canonical().contains("cuts"), "all PEs must cut alike");
    let wrong = Plan::new(&request(2, 13, mask, Layout::Zigzag, 1)).unwrap_err().to_string();
    assert!(wrong.starts_with("cuts 0,8,12: ends at 12, expected 13"), "{wrong}");
}

#[test]
fn batch_rows_with_other_documents_are_planned_each_by_its_own() {
    let rows = vec![
        Documents::cu_seqlens([0, 10, 50]),
        Documents::ranges([3..9, 12..50]),
        Documents::cu_seqlens([0, 10, 50]),
    ];
    let plan =
        checked(&Request { batch: 3, ..request(4, 50, Mask::causal().documents(rows), Layout::Zigzag, 2) });
    assert!(plan.bands.rows.len() == 3);
}

#[test]
fn public_failing_lengths_are_planned_exactly() {
    for lengths in [
        &[9u64, 7, 8, 12, 8, 12][..],
        &[18, 6, 8, 12, 8, 12],
        &[20, 3, 8, 12, 8, 12],
        &[3, 9, 20, 1, 13, 12, 6],
        &[7],
        &[1, 1, 1, 1],
        &[5, 11, 0, 48],
    ] {
        let total = lengths.iter().sum::<u64>() as usize;
        for pes in [2, 3, 4, 7] {
            for stages in [1, pes - 1, pes + 2] {
                checked(&request(
                    pes,
                    total,
                    Mask::causal().documents(documents(lengths)),
                    Layout::Zigzag,
                    stages,
                ));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let text = |request: &Request| Plan::new(request).unwrap_err().to_string();
    assert!(text(&request(2, 8, Mask::causal(), Layout::Zigzag, 0)).contains("stages is 0"));
    assert!(text(&request(0, 8, Mask::causal(), Layout::Zigzag, 1)).contains("PEs is 0"));
    let mask = Mask::causal().documents(documents(&[5, 2]));
    assert!(text(&request(2, 8, mask, Layout::Zigzag, 1)).contains("ends at 7, expected 8"));
    let cross =
        Request { kv_len: 9, ..request(2, 8, Mask::causal().documents(documents(&[8])), Layout::Zigzag, 1) };
    assert!(text(&cross).contains("kv_documents"));
    for (ranges, part) in [
        (vec![vec![0..4]], "1 lists for 2 PEs"),
        (vec![vec![0..4], vec![3..8]], "token 3 is held twice"),
        (vec![vec![0..4], vec![5..8]], "token 4 is held by nobody"),
        (vec![vec![0..4], vec![4..7]], "end at 7, expected 8"),
    ] {
        let found = text(&request(2, 8, Mask::causal(), Layout::Ranges(ranges), 1));
        assert!(found.contains(part), "{found}");
    }
}

/// What a tile sees lies side by side in a stage's buffer, whatever owners it comes from: no kernel has to gather it.
#[test]
fn long_rows_of_several_owners_lie_in_the_order_of_their_positions() {
    for pes in [3, 4, 8] {
        let request = Request {
            batch: 2,
            q_len: 2 * 64 * pes,
            kv_len: 2 * 64 * pes,
            pes,
            mask: Mask::causal(),
            layout: Layout::Zigzag,
            stages: 1,
        };
        let plan = checked(&request);
        for pe in &plan.pes {
            for tile in &pe.stages[1].tiles {
                let apart = tile.kv.windows(2).filter(|pair| pair[0].end != pair[1].start).count();
                assert_eq!(apart, 0, "PE {} of {pes}: {:?}", pe.pe, tile.kv);
            }
        }
    }
}

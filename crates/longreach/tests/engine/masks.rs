//! Windows, full masks in balanced layouts, large scores, bands.

use crate::harness::{Problem, Setting, Sizes, everywhere, exact_everywhere, layouts, lengths, run, tensor};
use longreach::{Attention, Band, DType, Edge, Layout, Mask};

const S: usize = 512;

fn sizes(len: usize, heads: usize, dim: usize) -> Sizes {
    Sizes {
        batch: 1,
        q_len: len,
        kv_len: len,
        q_heads: heads,
        kv_heads: heads,
        head_dim: dim,
        value_dim: dim,
        dtype: DType::F32,
    }
}

/// q = 0, v = `value(row)` in every element, dout = 1.
fn uniform(mask: Mask, dtype: DType, value: impl Fn(usize) -> f32) -> Problem {
    let problem = Problem::random(3, Sizes { dtype, ..sizes(S, 1, 32) }, mask);
    let of = |row: &dyn Fn(usize) -> f32| tensor((0..S * 32).map(|i| row(i / 32)), dtype, [1, S, 1, 32]);
    Problem { q: of(&|_| 0.0), v: of(&value), dout: of(&|_| 1.0), ..problem }
}

#[test]
fn b13_a_window_across_chunk_edges() {
    let problem = uniform(Mask::causal().window(Some(100), None), DType::F32, |row| row as f32);
    everywhere(&problem, &[1, 4, 5], |setting, results| {
        for (row, expected) in [(0, 0.0), (63, 31.5), (64, 32.0), (128, 78.0), (511, 461.0)] {
            let out = results.out[row * 32];
            assert!(
                (out - expected).abs() <= 1e-6 * expected.max(1.0) * 2.0,
                "row {row}: {out}, {setting:?}"
            );
        }
        assert!((results.lse[511] - 101f32.ln()).abs() < 1e-6, "{} {setting:?}", results.lse[511]);
        for key in 100..=411 {
            assert!(
                (results.dv[key * 32] - 1.0).abs() < 2e-6,
                "key {key}: {} {setting:?}",
                results.dv[key * 32]
            );
        }
        assert!((results.dv[511 * 32] - 1.0 / 101.0).abs() < 1e-7, "{setting:?}");
    });
}

#[test]
fn b13_one_key_is_seen_by_exactly_its_window() {
    let problem =
        uniform(
            Mask::causal().window(Some(100), None),
            DType::Bf16,
            |row| if row == 255 { 1.0 } else { 0.0 },
        );
    everywhere(&problem, &[4, 7], |setting, results| {
        for row in 0..S {
            let out = results.out[row * 32];
            if (255..=355).contains(&row) {
                assert!((out - 1.0 / 101.0).abs() < 1e-8, "row {row}: {out} {setting:?}");
            } else {
                assert_eq!(out, 0.0, "row {row} {setting:?}");
            }
        }
    });
}

#[test]
fn b13_windows_around_chunk_sizes() {
    for left in [0, 63, 64, 65, 127, 128, 511, 600] {
        let problem = Problem::random(5 + left, sizes(S, 1, 32), Mask::causal().window(Some(left), None));
        let full = Problem { attention: Attention::new(Mask::causal(), S), ..problem.clone() };
        for layout in layouts(S, 4) {
            let setting = Setting::new(4, layout, 2);
            let results = run(&problem, &setting).unwrap();
            if left == 0 {
                assert_eq!(results.out, problem.v.as_f32().unwrap(), "{setting:?}");
                // The one score of each row.
                let rows = |tensor: &longreach::Tensor| tensor.as_f32().unwrap().to_vec();
                let (q, k) = (rows(&problem.q), rows(&problem.k));
                for (row, lse) in results.lse.iter().enumerate() {
                    let (q, k) = (&q[row * 32..][..32], &k[row * 32..][..32]);
                    let score: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    let score = score * f64::from(32f32.sqrt().recip());
                    assert!((f64::from(*lse) - score).abs() < 2e-6, "row {row}: {lse} {score} {setting:?}");
                }
                assert!(results.dq.iter().chain(&results.dk).all(|&x| x == 0.0), "{setting:?}");
            }
            if left >= 511 {
                assert_eq!(results, run(&full, &setting).unwrap(), "{setting:?}");
            }
        }
        if left > 0 {
            exact_everywhere(&problem, &[4]);
        }
    }
}

#[test]
fn b13_windows_stop_at_document_starts() {
    for left in [0, 64, 128, 600] {
        let mask = Mask::causal().window(Some(left), None).documents(lengths(&[200, 1, 311]));
        let problem = Problem::random(7, sizes(S, 1, 32), mask);
        if left > 0 {
            exact_everywhere(&problem, &[4]);
        }
        let firsts = run(&problem, &Setting::new(4, Layout::Zigzag, 2)).unwrap();
        for first in [0, 200, 201] {
            assert_eq!(firsts.out[first * 32..][..32], problem.v.as_f32().unwrap()[first * 32..][..32]);
        }
    }
}

#[test]
fn b11_full_masks_in_every_layout() {
    for pes in [2, 4, 5] {
        exact_everywhere(&Problem::random(13, sizes(16 * pes, 2, 16), Mask::full()), &[pes]);
        // One token a chunk.
        exact_everywhere(&Problem::random(14, sizes(2 * pes, 2, 16), Mask::full()), &[pes]);
    }
}

#[test]
fn b07_a_pe_that_sees_almost_nothing_stays_finite() {
    let problem = Problem::random(17, sizes(128, 2, 32), Mask::causal());
    exact_everywhere(&problem, &[8]);
}

#[test]
fn b07_rows_and_shards_without_any_key() {
    // Keys 0..40 are seen by rows 30..60 only; nobody sees the others, and PEs hold none of the seen ones.
    let band = Band { q: 30..60, lo: Edge::Fixed(0), hi: Edge::Fixed(40) };
    let problem = Problem::random(19, sizes(96, 2, 32), Mask::bands(vec![band]));
    exact_everywhere(&problem, &[1, 3, 8]);
    let results = run(&problem, &Setting::new(8, Layout::Contiguous, 7)).unwrap();
    for row in (0..30).chain(60..96) {
        assert_eq!(results.lse[row], f32::NEG_INFINITY);
        assert!(results.out[row * 64..][..64].iter().chain(&results.dq[row * 64..][..64]).all(|&x| x == 0.0));
    }
    assert!(results.dk[40 * 64..].iter().chain(&results.dv[40 * 64..]).all(|&x| x == 0.0));
}

#[test]
fn b03_large_score_gaps_neither_overflow_nor_vanish() {
    // (score of the first half, score of the second half)
    for (low, high, lse) in [
        (0.0, 100.0, 103.465_74),
        (100.0, 0.0, 103.465_74),
        (-100.0, 100.0, 103.465_74),
        (0.0, -200.0, 3.465_736),
    ] {
        for dtype in [DType::F32, DType::Bf16] {
            let shape = [1, 64, 1, 64];
            let half = |row: usize| if row < 32 { low } else { high };
            let axis = |value: &dyn Fn(usize) -> f32| {
                tensor((0..64 * 64).map(|i| if i % 64 == 0 { value(i / 64) } else { 0.0 }), dtype, shape)
            };
            let rows =
                |value: &dyn Fn(usize) -> f32| tensor((0..64 * 64).map(|i| value(i / 64)), dtype, shape);
            let problem = Problem {
                q: axis(&|_| 10.0),
                k: axis(&|row| half(row) / 10.0),
                v: rows(&|row| if row < 32 { 1.0 } else { 2.0 }),
                dout: rows(&|_| 1.0),
                attention: Attention::new(Mask::full(), 64).scale(1.0),
            };
            let winner = if low > high { 0 } else { 1 };
            everywhere(&problem, &[1, 2, 4], |setting, results| {
                for row in 0..64 {
                    assert!((results.out[row * 64] - (winner + 1) as f32).abs() < 1e-6, "{setting:?}");
                    assert!((results.lse[row] - lse).abs() < 2e-5, "{} {setting:?}", results.lse[row]);
                    let dv = results.dv[row * 64];
                    if row / 32 == winner {
                        assert!((dv - 2.0).abs() < 1e-5, "{dv} {setting:?}");
                    } else {
                        assert!(dv.abs() < 1e-30, "{dv} {setting:?}");
                    }
                }
                let all = [&results.dq, &results.dk, &results.dv];
                assert!(all.iter().all(|data| data.iter().all(|x| x.is_finite())));
            });
        }
    }
}

#[test]
fn bands_of_any_kind_are_exact() {
    let bands = vec![
        Band { q: 0..100, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) },
        Band { q: 40..90, lo: Edge::Diagonal(3), hi: Edge::Diagonal(20) },
        Band { q: 100..150, lo: Edge::Diagonal(-30), hi: Edge::Fixed(140) },
        Band { q: 100..150, lo: Edge::Fixed(145), hi: Edge::Fixed(150) },
        Band { q: 120..121, lo: Edge::Fixed(2), hi: Edge::Fixed(5) },
    ];
    exact_everywhere(&Problem::random(23, sizes(150, 2, 32), Mask::bands(bands)), &[1, 3, 4, 7]);
}

#[test]
fn a_document_layout_returns_each_token_to_itself() {
    // With left = 0 a row sees its own key: through shard, attention and back, v_j = j comes back as j.
    let problem = uniform(
        Mask::causal().window(Some(0), None).documents(lengths(&[5, 11, 0, 48, 448])),
        DType::F32,
        |row| row as f32,
    );
    everywhere(&problem, &[2, 3, 8], |setting, results| {
        for row in 0..S {
            assert_eq!(results.out[row * 32], row as f32, "{setting:?}");
        }
    });
}

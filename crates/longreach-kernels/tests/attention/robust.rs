//! What must not matter: strides, padding, threads, batching, huge scores.

use crate::common::{Case, OwnTile, Sizes, check, pool, run, try_run};
use crate::tensor::Tensor;
use longreach_kernels::DType::{Bf16, F16, F32};
use longreach_kernels::{Context, Error, backward};
use longreach_plan::Edge::{Diagonal, Fixed};

#[test]
fn unusual_dims_do_not_depend_on_threads() {
    for (dk, dv) in [(1, 1), (2, 1), (700, 600)] {
        let tiles = vec![OwnTile::causal(1, 70), OwnTile::full(1, 0..9, &[70..90])];
        let case = Case::normal(Sizes(1, 70, 90, 6, 1, dk, dv), F32, tiles);
        let alone = check(&format!("dims {dk}/{dv}"), &case).bits();
        for threads in [2, 5] {
            assert!(run(&case, Some(&pool(threads)), 2).bits() == alone, "dims {dk}/{dv}");
        }
    }
}

/// Tiles of several kinds over 300 rows: shared rows, lists, bands.
fn mixed_tiles(batches: usize) -> Vec<OwnTile> {
    vec![
        OwnTile::new(batches, 0..300, &[0..300], Fixed(0), Diagonal(1)),
        OwnTile::full(batches, 0..300, &[900..1300, 300..309]),
        OwnTile::new(batches, 100..260, &[310..640], Diagonal(-9), Diagonal(40)),
        OwnTile::full(1, 0..100, &[1300..1301, 640..900]),
        OwnTile::full(batches, 299..300, &[700..705]),
    ]
}

#[test]
fn bits_do_not_depend_on_threads_or_calls() {
    for (hq, hkv, dtype) in [(2, 1, F32), (7, 1, F32), (4, 4, Bf16)] {
        let case = Case::normal(Sizes(2, 300, 1301, hq, hkv, 40, 24), dtype, mixed_tiles(2));
        let alone = run(&case, None, 1).bits();
        for threads in [1, 2, 3, 8] {
            let pool = pool(threads);
            for calls in [1, 2, 5] {
                let found = run(&case, Some(&pool), calls).bits();
                assert!(found == alone, "{threads} threads, {calls} calls");
            }
        }
    }
    // One head, many blocks of keys: threads share dQ.
    let case = Case::normal(Sizes(1, 2100, 2100, 1, 1, 16, 16), F32, vec![OwnTile::causal(1, 2100)]);
    let alone = run(&case, None, 1).bits();
    for _ in 0..5 {
        assert!(run(&case, Some(&pool(4)), 1).bits() == alone);
    }
}

#[test]
fn rows_of_short_tiles_do_not_depend_on_threads() {
    let tiles = (0..40).map(|i| OwnTile::full(1, i..i + 1, &[i * 20..i * 20 + 1 + i])).collect();
    let case = Case::normal(Sizes(1, 40, 900, 12, 2, 32, 32), F32, tiles);
    let alone = check("short tiles", &case).bits();
    for threads in [1, 2, 3, 16] {
        assert!(run(&case, Some(&pool(threads)), 3).bits() == alone);
    }
}

#[test]
fn strides() {
    let sizes = Sizes(2, 300, 1301, 4, 2, 24, 40);
    for dtype in [F32, F16, Bf16] {
        let plain = Case::normal(sizes, dtype, mixed_tiles(2));
        let right = run(&plain, None, 1).bits();
        type Order = fn([usize; 4]) -> [usize; 4];
        let orders: [(&str, Order); 4] = [
            ("[B, H, S, D]", |[_, s, h, d]| [h * s * d, d, s * d, 1]),
            ("[B, H, D, S]", |[_, s, h, d]| [h * s * d, 1, d * s, s]),
            ("every second", |[_, s, h, d]| [4 * s * h * d, 4 * h * d, 2 * d, 2]),
            ("gaps between rows", |[_, s, h, d]| [s * (h * d + 7) + 3, h * d + 7, d, 1]),
        ];
        for (name, order) in orders {
            let mut case = plain.clone();
            for tensor in [&mut case.q, &mut case.k, &mut case.v, &mut case.dout] {
                *tensor = tensor.restrided(order(tensor.shape));
            }
            assert!(run(&case, None, 1).bits() == right, "{name} {dtype}");
        }
    }
}

#[test]
fn expanded_tensors() {
    let mut case = Case::normal(Sizes(2, 300, 1301, 4, 2, 24, 40), F32, mixed_tiles(2));
    case.dout = Tensor::from_values(vec![1.0; case.dout.f32.len()], case.dout.shape, F32);
    let right = run(&case, None, 1).bits();
    // dout = ones expanded from one element, as the gradient of a sum is.
    case.dout.f32.truncate(1);
    case.dout.strides = [0; 4];
    assert!(run(&case, None, 1).bits() == right);
    // K and V shared by all batch entries and heads.
    case.k.strides = [0, 48, 0, 1];
    case.v.strides = [0, 80, 0, 1];
    check("expanded heads", &case);
    // One row of V for all keys.
    case.v.strides = [0, 0, 0, 1];
    let found = run(&case, None, 1);
    for (row, lse) in found.out.chunks(40).zip(&found.lse) {
        assert!(lse.is_finite());
        assert!(row.iter().zip(&case.v.f32).all(|(x, v)| (x - v).abs() < 1e-5 * v.abs().max(1e-3)));
    }
}

#[test]
fn content_of_unlisted_and_hidden_rows_changes_no_bit() {
    // Rows 0..3 and 290..300 of q and keys 5, 600..620 and 1290.. are padding: not listed, or hidden.
    let mut tiles = vec![
        OwnTile::new(2, 3..290, &[0..5, 6..600], Diagonal(-200), Diagonal(200)),
        OwnTile::new(2, 3..300, &[600..900], Fixed(20), Fixed(300)),
        OwnTile::new(2, 0..290, &[900..1301], Fixed(0), Fixed(390)),
    ];
    tiles[1].band.q = 0..287;
    tiles[2].band.q = 3..290;
    for dtype in [F32, Bf16] {
        let clean = Case::normal(Sizes(2, 300, 1301, 4, 2, 32, 32), dtype, tiles.clone());
        let right = check("clean", &clean);
        for value in [0.0, 1e4, f32::NAN, f32::INFINITY] {
            let mut case = clean.clone();
            for b in 0..2 {
                for s in (0..3).chain(290..300) {
                    case.q.set_row(b, s, value);
                    case.dout.set_row(b, s, value);
                }
                for s in (600..620).chain(1290..1301).chain([5]) {
                    case.k.set_row(b, s, value);
                    case.v.set_row(b, s, value);
                }
            }
            assert!(run(&case, None, 1).bits() == right.bits(), "padding {value}");
            assert!(run(&case, Some(&pool(3)), 2).bits() == right.bits(), "padding {value}");
        }
        for s in 290..300 {
            let row = s * 4 * 32..(s + 1) * 4 * 32;
            assert!(right.out[row.clone()].iter().all(|&x| x == 0.0));
            assert!(right.dq[row].iter().all(|&x| x == 0.0));
            assert_eq!(right.lse[s], f32::NEG_INFINITY);
        }
    }
}

/// The caller may mark rows that a tile lists as seeing nothing: lse = -inf is enough.
#[test]
fn rows_of_lse_minus_infinity_contribute_nothing() {
    let clean = Case::normal(Sizes(1, 70, 70, 2, 1, 16, 16), F32, vec![OwnTile::causal(1, 70)]);
    let whole = run(&clean, None, 1);
    let gradients = |case: &Case, poison: f32| {
        let cx = Context { pool: None, tick: &|| () };
        let (mut lse, mut delta) = (whole.lse.clone(), vec![0.25; 140]);
        for at in (60..70).chain(130..140) {
            (lse[at], delta[at]) = (f32::NEG_INFINITY, poison);
        }
        let (mut dq, mut dk, mut dv) = (vec![0.0; 2240], vec![0.0; 1120], vec![0.0; 1120]);
        let (q, k, v) = (case.q.view(), case.k.view(), case.v.view());
        let (dout, tiles) = (case.dout.view(), [case.tiles[0].tile()]);
        backward(&cx, &q, &k, &v, &dout, &lse, &delta, 0.25, &tiles, &mut dq, &mut dk, &mut dv).unwrap();
        [dq, dk, dv]
    };
    let right = gradients(&clean, 0.0);
    assert!(right.iter().flatten().all(|x| x.is_finite()));
    assert!(right[0][60 * 32..].iter().all(|&x| x == 0.0));
    assert!(right[1][60 * 16..].iter().chain(&right[2][60 * 16..]).all(|&x| x == 0.0));
    let mut case = clean.clone();
    for s in 60..70 {
        case.q.set_row(0, s, f32::NAN);
        case.dout.set_row(0, s, f32::NAN);
    }
    assert_eq!(gradients(&case, f32::NAN), right);
}

/// Scores 100 and 200 apart: the smaller half weighs exactly nothing, and nothing overflows.
#[test]
fn wide_gaps_between_scores() {
    for dtype in [F32, Bf16] {
        for (low, high) in [(0.0, 10.0), (-10.0, 10.0), (0.0, 100.0), (-20.0, 0.0), (0.0, 3000.0)] {
            for low_first in [true, false] {
                let half: [std::ops::Range<usize>; 2] =
                    if low_first { [0..32, 32..64] } else { [32..64, 0..32] };
                let tiles = half.iter().map(|kv| OwnTile::full(1, 0..64, std::slice::from_ref(kv))).collect();
                let mut case = Case::normal(Sizes(1, 64, 64, 1, 1, 64, 64), dtype, tiles);
                let at = |row: usize| if row < 32 { low } else { high };
                let first = |f: &dyn Fn(usize) -> f32| -> Vec<f32> {
                    (0..64 * 64).map(|i| if i % 64 == 0 { f(i / 64) } else { 0.0 }).collect()
                };
                let shape = [1, 64, 1, 64];
                case.scale = 1.0;
                case.q = Tensor::from_values(first(&|_| 10.0), shape, dtype);
                case.k = Tensor::from_values(first(&at), shape, dtype);
                let v = (0..64 * 64).map(|i| if i < 32 * 64 { 1.0 } else { 2.0 }).collect();
                case.v = Tensor::from_values(v, shape, dtype);
                case.dout = Tensor::from_values(vec![1.0; 64 * 64], shape, dtype);
                let found = run(&case, None, 2);
                let lse = f64::from(case.k.view().get([0, 32, 0, 0])) * 10.0 + 32f64.ln();
                assert!(found.all().all(|x| x.is_finite()));
                assert!(found.out.iter().all(|x| (x - 2.0).abs() < 1e-6));
                assert!(found.lse.iter().all(|&x| (f64::from(x) / lse - 1.0).abs() < 3e-7));
                assert!(found.dv[..32 * 64].iter().all(|x| x.abs() < 1e-30));
                let tolerance = 2.0 * lse.abs() as f32 * f32::EPSILON;
                assert!(found.dv[32 * 64..].iter().all(|x| (x - 2.0).abs() < tolerance.max(1e-5)));
            }
        }
    }
}

/// A visible score of -inf weighs exactly 0; all of them -inf give no plausible number.
#[test]
fn minus_infinity_among_scores() {
    let mut case = Case::normal(Sizes(1, 4, 6, 1, 1, 8, 8), F32, vec![OwnTile::full(1, 0..4, &[0..6])]);
    let right = {
        let mut case = case.clone();
        case.tiles = vec![OwnTile::full(1, 0..4, &[0..2, 3..6])];
        run(&case, None, 1)
    };
    for row in 0..4 {
        case.q.f32[row * 8] = 1.0;
    }
    let with_ones = {
        let mut case = case.clone();
        case.tiles = vec![OwnTile::full(1, 0..4, &[0..2, 3..6])];
        run(&case, None, 1)
    };
    assert_ne!(right.lse, with_ones.lse);
    case.k.f32[2 * 8] = f32::NEG_INFINITY;
    let found = run(&case, None, 1);
    for (x, y) in found.lse.iter().chain(&found.out).zip(with_ones.lse.iter().chain(&with_ones.out)) {
        assert!((x - y).abs() < 1e-5 * y.abs().max(1.0), "{x} {y}");
    }
}

#[test]
fn a_visible_nan_is_not_hidden() {
    let mut case = Case::normal(Sizes(1, 40, 40, 1, 1, 16, 16), F32, vec![OwnTile::causal(1, 40)]);
    case.k.set_row(0, 39, f32::NAN);
    let found = run(&case, None, 1);
    assert!(found.lse[..39].iter().all(|x| x.is_finite()));
    assert!(found.lse[39].is_nan());
    assert!(found.out[39 * 16..].iter().all(|x| x.is_nan()));
}

#[test]
fn refusals() {
    let tiles = |tile: OwnTile| vec![tile];
    let case = |tile| Case::normal(Sizes(1, 8, 8, 4, 2, 8, 8), F32, tiles(tile));
    let good = OwnTile::causal(1, 8);
    let refused = |case: &Case| try_run(case, None, 1).unwrap_err();

    let mut bad = case(good.clone());
    bad.k = Tensor::normal([1, 8, 3, 8], F32, 1);
    bad.v = Tensor::normal([1, 8, 3, 8], F32, 1);
    assert!(matches!(refused(&bad), Error::Shape { what: "q", .. }));
    bad.k = Tensor::normal([1, 8, 2, 9], F32, 1);
    assert!(matches!(refused(&bad), Error::Shape { what: "k", .. }));
    bad = case(good.clone());
    bad.v = Tensor::normal([1, 7, 2, 8], F32, 1);
    assert!(matches!(refused(&bad), Error::Shape { what: "v", .. }));
    bad = case(good.clone());
    bad.dout = Tensor::normal([1, 8, 4, 9], F32, 1);
    assert!(matches!(refused(&bad), Error::Length { .. } | Error::Shape { what: "dout", .. }));

    let beyond = refused(&case(OwnTile::full(1, 0..8, &[0..9])));
    assert_eq!(
        beyond.to_string(),
        "tile 0 lists key rows 0..9, but the views have key rows 0..8: cut the tile to the views"
    );
    assert!(matches!(
        refused(&case(OwnTile::full(1, 0..9, &[0..8]))),
        Error::Bounds { what: "query rows", .. }
    ));
    assert!(matches!(refused(&case(OwnTile::full(2, 0..8, &[0..8]))), Error::Bounds { what: "batches", .. }));
    assert!(matches!(
        refused(&case(OwnTile::full(1, 0..8, &[0..4, 3..5]))),
        Error::Overlap { first, second, .. } if (first.clone(), second.clone()) == (0..4, 3..5)
    ));
}

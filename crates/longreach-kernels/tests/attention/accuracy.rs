//! Kernels against float64: masks, head groups, dims, lengths, types.

use crate::common::{Case, OwnTile, Sizes, TOLERANCE, check, errors};
use crate::reference::{Fault, reference};
use longreach_kernels::DType::{Bf16, F16, F32};
use longreach_plan::Edge::{Diagonal, Fixed};

#[test]
fn masks() {
    let sizes = Sizes(2, 300, 700, 2, 1, 32, 32);
    let whole = [0..700];
    let bands = [
        ("full", Fixed(0), Fixed(700)),
        ("causal", Fixed(0), Diagonal(1)),
        ("bottom-right causal", Fixed(0), Diagonal(401)),
        ("window", Diagonal(-20), Diagonal(30)),
        ("one key a row", Diagonal(3), Diagonal(4)),
        ("anti-causal", Diagonal(0), Fixed(700)),
        ("shifted beyond the keys", Diagonal(500), Diagonal(900)),
        ("only late rows", Fixed(0), Diagonal(-200)),
        ("only early rows", Diagonal(550), Fixed(640)),
        ("nothing", Fixed(9), Fixed(9)),
    ];
    for (name, lo, hi) in bands {
        let tiles = vec![OwnTile::new(2, 0..300, &whole, lo, hi)];
        check(name, &Case::normal(sizes, F32, tiles));
    }
}

#[test]
fn gathered_lists_and_many_tiles() {
    let sizes = Sizes(2, 200, 900, 4, 2, 40, 24);
    let mut tiles = vec![
        OwnTile::full(2, 0..150, &[700..900, 0..3, 10..10, 300..420]),
        OwnTile::new(2, 20..200, &[500..640, 640..641, 200..207], Diagonal(-30), Diagonal(60)),
        OwnTile::full(1, 0..150, &[450..500]),
        OwnTile::new(2, 150..151, &[3..9], Fixed(1), Fixed(3)),
    ];
    // A band that speaks of some of the rows only.
    tiles[1].band.q = 7..91;
    check("lists", &Case::normal(sizes, F32, tiles.clone()));
    check("lists bf16", &Case::normal(sizes, Bf16, tiles));
}

#[test]
fn packed_documents() {
    let mut tiles = Vec::new();
    let mut start = 0;
    for len in [8, 120, 0, 64, 1, 320, 17] {
        let rows = start..start + len;
        let kv = [rows.clone()];
        tiles.push(OwnTile::new(1, rows, &kv, Fixed(0), Diagonal(1)));
        start += len;
    }
    check("documents", &Case::normal(Sizes(1, 540, 540, 4, 1, 64, 64), F32, tiles));
}

#[test]
fn head_groups_and_dims() {
    for (hq, hkv, dk, dv) in [
        (28, 7, 64, 64),
        (8, 1, 64, 64),
        (12, 1, 16, 16),
        (2, 2, 192, 128),
        (2, 1, 96, 96),
        (2, 1, 256, 256),
        (3, 3, 1, 1),
        (2, 1, 2, 5),
        (2, 1, 17, 3),
        (2, 2, 128, 128),
    ] {
        for rows in [150, 5] {
            let case =
                Case::normal(Sizes(1, rows, rows, hq, hkv, dk, dv), F32, vec![OwnTile::causal(1, rows)]);
            check(&format!("{hq}/{hkv} heads, dims {dk}/{dv}, {rows} rows"), &case);
        }
    }
}

#[test]
fn odd_lengths() {
    for (sq, skv) in [(1, 1), (1, 2), (1, 1000), (2, 3), (15, 17), (129, 513), (257, 1025), (1000, 1)] {
        let whole = [0..skv];
        let case = |hq, hkv| {
            Case::normal(Sizes(1, sq, skv, hq, hkv, 20, 20), F32, vec![OwnTile::full(1, 0..sq, &whole)])
        };
        check(&format!("{sq} rows, {skv} keys"), &case(1, 1));
        check(&format!("{sq} rows, {skv} keys, grouped"), &case(6, 2));
    }
}

#[test]
fn empty_inputs() {
    for sizes in [
        Sizes(1, 0, 5, 2, 1, 8, 8),
        Sizes(1, 5, 0, 2, 1, 8, 8),
        Sizes(0, 5, 5, 2, 1, 8, 8),
        Sizes(1, 5, 5, 2, 1, 8, 0),
        Sizes(1, 5, 5, 0, 0, 8, 8),
    ] {
        let whole = [0..sizes.2];
        let case = Case::normal(sizes, F32, vec![OwnTile::full(sizes.0, 0..sizes.1, &whole)]);
        let found = crate::common::run(&case, None, 1);
        assert!(found.all().all(|&x| x == 0.0), "{sizes:?}");
        if sizes.2 == 0 {
            assert!(found.lse.iter().all(|&x| x == f32::NEG_INFINITY));
        }
    }
}

#[test]
fn dim_zero_of_qk_weighs_all_keys_alike() {
    let tiles = vec![OwnTile::full(1, 0..3, &[0..40])];
    let mut case = Case::normal(Sizes(1, 3, 40, 1, 1, 0, 8), F32, tiles);
    case.scale = 1.0;
    check("head_dim 0", &case);
}

#[test]
fn sixteen_bit_inputs_accumulate_in_float32() {
    for dtype in [F16, Bf16] {
        let tiles = vec![OwnTile::causal(2, 700)];
        check(dtype.name(), &Case::normal(Sizes(2, 700, 700, 4, 2, 64, 64), dtype, tiles));
    }
}

#[test]
fn long_rows_stay_accurate() {
    let tiles = vec![OwnTile::new(1, 0..64, &[0..6000], Fixed(0), Diagonal(5937))];
    check("long", &Case::normal(Sizes(1, 64, 6000, 1, 1, 64, 64), F32, tiles));
}

/// The tolerance tells right from wrong: each planted fault is beyond it in every tensor it touches.
#[test]
fn planted_faults_are_caught() {
    let case = Case::normal(Sizes(1, 700, 700, 2, 1, 64, 64), F32, vec![OwnTile::causal(1, 700)]);
    let right = reference(&case, Fault::None);
    for fault in [Fault::DropKey, Fault::Sum16] {
        for (tensor, error) in errors(&reference(&case, fault).0, &right) {
            if (fault, tensor) != (Fault::Sum16, "lse") {
                assert!(error > 20.0 * TOLERANCE, "{fault:?} in {tensor} shows as {error:e} only");
            }
        }
    }
    let mut zeros = right.0.clone();
    for tensor in [&mut zeros.out, &mut zeros.lse, &mut zeros.dq, &mut zeros.dk, &mut zeros.dv] {
        tensor.fill(0.0);
    }
    for (tensor, error) in errors(&zeros, &right) {
        assert!(error > 0.99, "zeros in {tensor} show as {error:e} only");
    }
}

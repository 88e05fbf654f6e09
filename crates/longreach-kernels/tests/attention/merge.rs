//! Merging normalised parts into a carried state, and finishing.

use crate::common::{Case, OwnTile, Sizes, TOLERANCE, relative, run};
use crate::reference::{Fault, reference};
use longreach_kernels::{Context, DType, Data, Error, State, View, delta, finish, forward, merge, scratch};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A state of one row of two values.
struct Row {
    acc: [f32; 2],
    max: [f32; 1],
    sum: [f32; 1],
}

impl Row {
    fn identity() -> Self {
        let mut row = Self { acc: [f32::NAN; 2], max: [0.0], sum: [7.0] };
        row.state().reset();
        row
    }

    fn state(&mut self) -> State<'_> {
        State { acc: &mut self.acc, max: &mut self.max, sum: &mut self.sum }
    }

    fn merge(mut self, out: [f32; 2], lse: f32) -> Self {
        let out = View::contiguous(Data::F32(&out), [1, 1, 1, 2]).unwrap();
        merge(&out, &[lse], &mut self.state()).unwrap();
        self
    }

    fn finish(mut self) -> ([f32; 2], f32) {
        let cx = Context { pool: None, tick: &|| () };
        let (mut out, mut lse) = ([f32::NAN; 2], [f32::NAN]);
        finish(&cx, &self.state(), [1, 1, 1, 2], &mut out, &mut lse).unwrap();
        (out, lse[0])
    }
}

#[test]
fn identities() {
    let none = f32::NEG_INFINITY;
    assert_eq!(Row::identity().finish(), ([0.0; 2], none));
    assert_eq!(Row::identity().merge([0.0; 2], none).finish(), ([0.0; 2], none));
    assert_eq!(Row::identity().merge([f32::NAN; 2], none).finish(), ([0.0; 2], none));
    let part = ([1.5, -2.25], 3.75);
    assert_eq!(Row::identity().merge(part.0, part.1).finish(), part);
    assert_eq!(Row::identity().merge([0.0; 2], none).merge(part.0, part.1).finish(), part);
    assert_eq!(Row::identity().merge(part.0, part.1).merge([0.0; 2], none).finish(), part);
}

#[test]
fn gaps_neither_overflow_nor_vanish() {
    for gap in [88.0, 100.0, 200.0, 1e4, 3e38] {
        for swap in [false, true] {
            let (mut a, mut b) = (([1.0, 1.0], 0.0), ([2.0, 2.0], gap));
            if swap {
                (a, b) = (b, a);
            }
            let found = Row::identity().merge(a.0, a.1).merge(b.0, b.1).finish();
            assert_eq!(found, ([2.0, 2.0], gap));
        }
    }
    let (out, lse) = Row::identity().merge([1.0, 0.0], 5.0).merge([0.0, 1.0], 5.0).finish();
    assert_eq!(out, [0.5, 0.5]);
    assert!((lse - (5.0 + 2f32.ln())).abs() < 1e-6);
}

/// Parts computed apart, normalised and merged give what carrying gives, to rounding.
#[test]
fn merged_parts_equal_the_whole() {
    let kv = [[0..100], [100..101], [101..700]];
    let tiles = kv.iter().map(|kv| OwnTile::full(2, 0..90, kv)).collect();
    let case = Case::normal(Sizes(2, 90, 700, 4, 2, 32, 24), DType::F32, tiles);
    let shape = [2, 90, 4, 24];
    let (mut acc, mut max, mut sum) = (vec![0.0; 2 * 90 * 4 * 24], vec![0.0; 720], vec![0.0; 720]);
    let mut state = State { acc: &mut acc, max: &mut max, sum: &mut sum };
    state.reset();
    for tile in &case.tiles {
        let part = run(&Case { tiles: vec![tile.clone()], ..case.clone() }, None, 1);
        let out = View::contiguous(Data::F32(&part.out), shape).unwrap();
        merge(&out, &part.lse, &mut state).unwrap();
    }
    let cx = Context { pool: None, tick: &|| () };
    let (mut out, mut lse) = (vec![0.0; 2 * 90 * 4 * 24], vec![0.0; 720]);
    finish(&cx, &state, shape, &mut out, &mut lse).unwrap();
    let (right, bound) = reference(&case, Fault::None);
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    assert!(relative(&wide(&out), &right.out, &bound.out) < TOLERANCE);
    assert!(relative(&wide(&lse), &right.lse, &bound.lse) < TOLERANCE);
}

#[test]
fn wrong_lengths_are_refused() {
    let cx = Context { pool: None, tick: &|| () };
    let mut row = Row::identity();
    let (mut out, mut lse) = ([0.0; 2], [0.0; 2]);
    let error = finish(&cx, &row.state(), [1, 1, 1, 2], &mut out, &mut lse).unwrap_err();
    assert_eq!(error.to_string(), "lse has 2 elements, but its shape [1, 1, 1] needs exactly 1");
    let error = finish(&cx, &row.state(), [1, 2, 1, 2], &mut out, &mut lse).unwrap_err();
    assert!(matches!(error, Error::Length { what: "state.acc", given: 2, needed: 4, .. }));
    let dout = View::contiguous(Data::F32(&[0.0; 2]), [1, 1, 1, 2]).unwrap();
    assert!(delta(&cx, &dout, &[0.0; 3], &mut [0.0]).is_err());
    assert!(merge(&dout, &[0.0; 2], &mut row.state()).is_err());
    let huge = [usize::MAX, 2, 1, 2];
    let error = finish(&cx, &row.state(), huge, &mut out, &mut lse).unwrap_err();
    assert!(matches!(error, Error::Overflow { what: "state.acc", .. }));
}

#[test]
fn work_ticks_and_the_bound_of_scratch_is_known_before() {
    let case = Case::normal(Sizes(1, 300, 300, 2, 1, 64, 64), DType::F32, vec![OwnTile::causal(1, 300)]);
    let ticks = AtomicUsize::new(0);
    let cx = Context {
        pool: None,
        tick: &|| {
            ticks.fetch_add(1, Ordering::Relaxed);
        },
    };
    let (q, k, v) = (case.q.view(), case.k.view(), case.v.view());
    let tiles = [case.tiles[0].tile()];
    let mut acc = vec![0.0; 300 * 2 * 64];
    let (mut max, mut sum) = (vec![0.0; 600], vec![0.0; 600]);
    let mut state = State { acc: &mut acc, max: &mut max, sum: &mut sum };
    state.reset();
    forward(&cx, &q, &k, &v, case.scale, &tiles, &mut state).unwrap();
    assert_eq!(ticks.load(Ordering::Relaxed), 3); // Blocks of 128, 128 and 44 rows.

    // Scores of 512 keys for 128 columns, twice in the backward.
    let bytes = scratch(2, 1, 64, 64);
    assert!((2 * 128 * 512 * 4..4 << 20).contains(&bytes), "{bytes}");
    assert!(scratch(2, 1, 128, 64) > bytes);
    assert_eq!(scratch(3, 2, 64, 64), 0, "heads that do not fit");
}

//! Cases, and how they are run and measured.

use std::ops::Range;

use longreach_kernels::{Context, DType, Error, State, Tile, backward, delta, finish, forward};
use longreach_plan::{Band, Edge};

use crate::reference::{Fault, reference};
use crate::tensor::Tensor;

/// A tile that owns its lists.
#[derive(Clone, Debug)]
pub struct OwnTile {
    pub batch: Range<usize>,
    pub q: Range<usize>,
    pub kv: Vec<Range<usize>>,
    pub band: Band,
}

impl OwnTile {
    pub fn new(batches: usize, q: Range<usize>, kv: &[Range<usize>], lo: Edge, hi: Edge) -> Self {
        let band = Band { q: 0..q.len() as i64, lo, hi };
        Self { batch: 0..batches, q, kv: kv.to_vec(), band }
    }

    pub fn full(batches: usize, q: Range<usize>, kv: &[Range<usize>]) -> Self {
        let keys = kv.iter().map(ExactSizeIterator::len).sum::<usize>() as i64;
        Self::new(batches, q, kv, Edge::Fixed(0), Edge::Fixed(keys))
    }

    pub fn causal(batches: usize, rows: usize) -> Self {
        Self::new(batches, 0..rows, &[0..rows], Edge::Fixed(0), Edge::Diagonal(1))
    }

    pub fn tile(&self) -> Tile<'_> {
        Tile { batch: self.batch.clone(), q: self.q.clone(), kv: &self.kv, band: &self.band }
    }
}

/// The operands of a call.
#[derive(Clone, Debug)]
pub struct Case {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub dout: Tensor,
    pub scale: f32,
    pub tiles: Vec<OwnTile>,
}

/// Sizes of a case: batch, query rows, key rows, query heads, key heads, head_dim of Q and K, of V.
#[derive(Clone, Copy, Debug)]
pub struct Sizes(pub usize, pub usize, pub usize, pub usize, pub usize, pub usize, pub usize);

impl Case {
    pub fn normal(sizes: Sizes, dtype: DType, tiles: Vec<OwnTile>) -> Self {
        let Sizes(b, sq, skv, hq, hkv, dk, dv) = sizes;
        Self {
            q: Tensor::normal([b, sq, hq, dk], dtype, 1),
            k: Tensor::normal([b, skv, hkv, dk], dtype, 2),
            v: Tensor::normal([b, skv, hkv, dv], dtype, 3),
            dout: Tensor::normal([b, sq, hq, dv], dtype, 4),
            scale: 1.0 / (dk as f32).sqrt(),
            tiles,
        }
    }
}

/// All results of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Results<T> {
    pub out: Vec<T>,
    pub lse: Vec<T>,
    pub dq: Vec<T>,
    pub dk: Vec<T>,
    pub dv: Vec<T>,
}

pub type Bits = Results<u32>;

impl Results<f32> {
    pub fn bits(&self) -> Bits {
        let bits = |x: &Vec<f32>| x.iter().map(|x| x.to_bits()).collect();
        Results {
            out: bits(&self.out),
            lse: bits(&self.lse),
            dq: bits(&self.dq),
            dk: bits(&self.dk),
            dv: bits(&self.dv),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &f32> {
        [&self.out, &self.dq, &self.dk, &self.dv].into_iter().flatten()
    }
}

/// Runs the kernels on a case; `calls` cuts the tiles into that many forward and backward calls.
pub fn run(case: &Case, pool: Option<&rayon::ThreadPool>, calls: usize) -> Results<f32> {
    try_run(case, pool, calls).unwrap()
}

pub fn try_run(case: &Case, pool: Option<&rayon::ThreadPool>, calls: usize) -> Result<Results<f32>, Error> {
    let cx = Context { pool, tick: &|| () };
    let [b, sq, hq, dk] = case.q.shape;
    let [_, skv, hkv, dv] = case.v.shape;
    let (q, k, v, dout) = (case.q.view(), case.k.view(), case.v.view(), case.dout.view());
    let tiles: Vec<Tile> = case.tiles.iter().map(OwnTile::tile).collect();
    let batch = tiles.len().div_ceil(calls).max(1);

    let (mut acc, mut max) = (vec![f32::NAN; b * sq * hq * dv], vec![f32::NAN; b * sq * hq]);
    let mut sum = max.clone();
    let mut state = State { acc: &mut acc, max: &mut max, sum: &mut sum };
    state.reset();
    for tiles in tiles.chunks(batch) {
        forward(&cx, &q, &k, &v, case.scale, tiles, &mut state)?;
    }
    let mut out = vec![f32::NAN; b * sq * hq * dv];
    let mut lse = vec![f32::NAN; b * sq * hq];
    finish(&cx, &state, [b, sq, hq, dv], &mut out, &mut lse)?;
    let mut row_delta = lse.clone();
    delta(&cx, &dout, &out, &mut row_delta)?;
    let mut grad_q = vec![0.0; b * sq * hq * dk];
    let mut grad_k = vec![0.0; b * skv * hkv * dk];
    let mut grad_v = vec![0.0; b * skv * hkv * dv];
    for tiles in tiles.chunks(batch) {
        backward(
            &cx,
            &q,
            &k,
            &v,
            &dout,
            &lse,
            &row_delta,
            case.scale,
            tiles,
            &mut grad_q,
            &mut grad_k,
            &mut grad_v,
        )?;
    }
    Ok(Results { out, lse, dq: grad_q, dk: grad_k, dv: grad_v })
}

/// ||x - right|| / max(||right||, 1e-6 ||bound||); entries whose reference is -inf must match exactly and
/// leave the norms.
pub fn relative(x: &[f64], right: &[f64], bound: &[f64]) -> f64 {
    let (mut error, mut norm, mut bounds) = (0.0, 0.0, 0.0);
    assert_eq!(x.len(), right.len());
    for ((&x, &right), &bound) in x.iter().zip(right).zip(bound) {
        if right == f64::NEG_INFINITY {
            assert_eq!(x, right, "a row that sees no key");
            continue;
        }
        error += (x - right).powi(2);
        norm += right * right;
        bounds += bound * bound;
    }
    let scale = norm.sqrt().max(1e-6 * bounds.sqrt());
    if error == 0.0 { 0.0 } else { error.sqrt() / scale }
}

/// The relative error of each tensor, in the order out, lse, dq, dk, dv.
pub fn errors(x: &Results<f64>, right: &(Results<f64>, Results<f64>)) -> [(&'static str, f64); 5] {
    let (r, b) = right;
    [
        ("out", relative(&x.out, &r.out, &b.out)),
        ("lse", relative(&x.lse, &r.lse, &b.lse)),
        ("dq", relative(&x.dq, &r.dq, &b.dq)),
        ("dk", relative(&x.dk, &r.dk, &b.dk)),
        ("dv", relative(&x.dv, &r.dv, &b.dv)),
    ]
}

pub fn widen(x: &Results<f32>) -> Results<f64> {
    let wide = |x: &Vec<f32>| x.iter().map(|&x| f64::from(x)).collect();
    Results { out: wide(&x.out), lse: wide(&x.lse), dq: wide(&x.dq), dk: wide(&x.dk), dv: wide(&x.dv) }
}

/// The tolerance of a CPU kernel, for every tensor.
pub const TOLERANCE: f64 = 5e-6;

/// Runs a case on the calling thread and holds it against the reference.
pub fn check(name: &str, case: &Case) -> Results<f32> {
    let found = run(case, None, 1);
    let errors = errors(&widen(&found), &reference(case, Fault::None));
    for (tensor, error) in errors {
        assert!(error <= TOLERANCE, "{name}: {tensor} is off by {error:e}; all: {errors:?}");
    }
    found
}

pub fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

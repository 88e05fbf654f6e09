//! Attention and its gradients in plain float64, and what the tests share.

use std::ops::Range;

use half::{bf16, f16};
use longreach_kernels::{
    Context, DType, Data, Error, State, Tile, View, backward, delta, finish, forward,
};
use longreach_plan::{Band, Edge};

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
        let band = Band {
            q: 0..q.len() as i64,
            lo,
            hi,
        };
        Self {
            batch: 0..batches,
            q,
            kv: kv.to_vec(),
            band,
        }
    }

    pub fn full(batches: usize, q: Range<usize>, kv: &[Range<usize>]) -> Self {
        let keys = kv.iter().map(ExactSizeIterator::len).sum::<usize>() as i64;
        Self::new(batches, q, kv, Edge::Fixed(0), Edge::Fixed(keys))
    }

    pub fn causal(batches: usize, rows: usize) -> Self {
        Self::new(
            batches,
            0..rows,
            &[0..rows],
            Edge::Fixed(0),
            Edge::Diagonal(1),
        )
    }

    pub fn tile(&self) -> Tile<'_> {
        Tile {
            batch: self.batch.clone(),
            q: self.q.clone(),
            kv: &self.kv,
            band: &self.band,
        }
    }
}

/// A tensor `[batch, rows, heads, dim]` with its own memory order.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub f32: Vec<f32>,
    pub f16: Vec<f16>,
    pub bf16: Vec<bf16>,
    pub dtype: DType,
    pub shape: [usize; 4],
    pub strides: [usize; 4],
}

impl Tensor {
    /// Row-major normal values, rounded to `dtype`.
    pub fn normal(shape: [usize; 4], dtype: DType, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut normal = || {
            (-2.0 * uniform().max(1e-300).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
        };
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| normal() as f32)
            .collect();
        Self::from_values(values, shape, dtype)
    }

    pub fn from_values(values: Vec<f32>, shape: [usize; 4], dtype: DType) -> Self {
        let strides = [
            shape[1] * shape[2] * shape[3],
            shape[2] * shape[3],
            shape[3],
            1,
        ];
        let mut own = Self {
            f32: values,
            f16: Vec::new(),
            bf16: Vec::new(),
            dtype,
            shape,
            strides,
        };
        match dtype {
            DType::F32 => {}
            DType::F16 => own.f16 = own.f32.iter().map(|&x| f16::from_f32(x)).collect(),
            DType::Bf16 => own.bf16 = own.f32.iter().map(|&x| bf16::from_f32(x)).collect(),
        }
        own
    }

    /// The same values in memory order `strides` (of a buffer with gaps of NaN), from element 0 on.
    pub fn restrided(&self, strides: [usize; 4]) -> Self {
        let reach: usize = self
            .shape
            .iter()
            .zip(strides)
            .map(|(n, s)| (n - 1) * s)
            .sum();
        let mut values = vec![f32::NAN; reach + 1];
        let [nb, ns, nh, nd] = self.shape;
        for b in 0..nb {
            for s in 0..ns {
                for h in 0..nh {
                    for d in 0..nd {
                        values[b * strides[0] + s * strides[1] + h * strides[2] + d * strides[3]] =
                            self.view().get([b, s, h, d]);
                    }
                }
            }
        }
        let mut own = Self::from_values(values, self.shape, self.dtype);
        own.strides = strides;
        own
    }

    pub fn view(&self) -> View<'_> {
        let data = match self.dtype {
            DType::F32 => Data::F32(&self.f32),
            DType::F16 => Data::F16(&self.f16),
            DType::Bf16 => Data::Bf16(&self.bf16),
        };
        View::strided(data, self.shape, self.strides).unwrap()
    }

    /// Overwrites a row of every head.
    pub fn set_row(&mut self, b: usize, s: usize, value: f32) {
        for h in 0..self.shape[2] {
            for d in 0..self.shape[3] {
                let at = b * self.strides[0]
                    + s * self.strides[1]
                    + h * self.strides[2]
                    + d * self.strides[3];
                self.f32[at] = value;
                if let Some(x) = self.f16.get_mut(at) {
                    *x = f16::from_f32(value);
                }
                if let Some(x) = self.bf16.get_mut(at) {
                    *x = bf16::from_f32(value);
                }
            }
        }
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
pub struct Sizes(
    pub usize,
    pub usize,
    pub usize,
    pub usize,
    pub usize,
    pub usize,
    pub usize,
);

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
        [&self.out, &self.dq, &self.dk, &self.dv]
            .into_iter()
            .flatten()
    }
}

/// Runs the kernels on a case; `calls` cuts the tiles into that many forward and backward calls.
pub fn run(case: &Case, pool: Option<&rayon::ThreadPool>, calls: usize) -> Results<f32> {
    try_run(case, pool, calls).unwrap()
}

pub fn try_run(
    case: &Case,
    pool: Option<&rayon::ThreadPool>,
    calls: usize,
) -> Result<Results<f32>, Error> {
    let cx = Context { pool, tick: &|| () };
    let [b, sq, hq, dk] = case.q.shape;
    let [_, skv, hkv, dv] = case.v.shape;
    let (q, k, v, dout) = (
        case.q.view(),
        case.k.view(),
        case.v.view(),
        case.dout.view(),
    );
    let tiles: Vec<Tile> = case.tiles.iter().map(OwnTile::tile).collect();
    let batch = tiles.len().div_ceil(calls).max(1);

    let (mut acc, mut max) = (
        vec![f32::NAN; b * sq * hq * dv],
        vec![f32::NAN; b * sq * hq],
    );
    let mut sum = max.clone();
    let mut state = State {
        acc: &mut acc,
        max: &mut max,
        sum: &mut sum,
    };
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
    Ok(Results {
        out,
        lse,
        dq: grad_q,
        dk: grad_k,
        dv: grad_v,
    })
}

/// What a fault to be caught does to the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// The last key of each row that sees more than one is dropped.
    DropKey,
    /// Partial sums are rounded to bfloat16.
    Sum16,
}

/// The results in float64, and for each the same formula over absolute values of the summands.
pub fn reference(case: &Case, fault: Fault) -> (Results<f64>, Results<f64>) {
    let [nb, sq, hq, dim_qk] = case.q.shape;
    let [_, skv, hkv, dim_v] = case.v.shape;
    let group = hq / hkv;
    let wide =
        |t: &Tensor| -> Vec<f64> { t.view().to_f32().iter().map(|&x| f64::from(x)).collect() };
    let (q, k, v, dout) = (
        wide(&case.q),
        wide(&case.k),
        wide(&case.v),
        wide(&case.dout),
    );
    let zeros = || Results {
        out: vec![0.0; nb * sq * hq * dim_v],
        lse: vec![f64::NEG_INFINITY; nb * hq * sq],
        dq: vec![0.0; nb * sq * hq * dim_qk],
        dk: vec![0.0; nb * skv * hkv * dim_qk],
        dv: vec![0.0; nb * skv * hkv * dim_v],
    };
    let (mut r, mut bound) = (zeros(), zeros());
    let round = |x: f64| match fault {
        Fault::Sum16 => f64::from(bf16::from_f64(x)),
        _ => x,
    };
    let scale = f64::from(case.scale);
    for b in 0..nb {
        for s in 0..sq {
            let mut keys = Vec::new();
            for tile in case
                .tiles
                .iter()
                .filter(|t| t.batch.contains(&b) && t.q.contains(&s))
            {
                let row = (s - tile.q.start) as i64;
                let gathered: Vec<usize> = tile.kv.iter().cloned().flatten().collect();
                for (g, &key) in gathered.iter().enumerate() {
                    let g = g as i64;
                    let (lo, hi) = (tile.band.lo.at(row), tile.band.hi.at(row));
                    if tile.band.q.contains(&row) && lo <= g && g < hi {
                        keys.push(key);
                    }
                }
            }
            if fault == Fault::DropKey && keys.len() > 1 {
                keys.pop();
            }
            if keys.is_empty() {
                continue;
            }
            for h in 0..hq {
                let q_at = ((b * sq + s) * hq + h) * dim_qk;
                let o_at = ((b * sq + s) * hq + h) * dim_v;
                let at = |key: usize, dim: usize| ((b * skv + key) * hkv + h / group) * dim;
                let scores: Vec<f64> = keys
                    .iter()
                    .map(|&key| {
                        let k = &k[at(key, dim_qk)..][..dim_qk];
                        scale
                            * q[q_at..q_at + dim_qk]
                                .iter()
                                .zip(k)
                                .map(|(x, y)| x * y)
                                .sum::<f64>()
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                r.lse[(b * hq + h) * sq + s] = max + sum.ln();
                bound.lse[(b * hq + h) * sq + s] = max.abs() + sum.ln().abs();
                let p: Vec<f64> = scores.iter().map(|s| (s - max).exp() / sum).collect();
                let mut delta = 0.0;
                let mut delta_bound = 0.0;
                for d in 0..dim_v {
                    let mut o = 0.0;
                    for (&key, p) in keys.iter().zip(&p) {
                        o = round(o + p * v[at(key, dim_v) + d]);
                        bound.out[o_at + d] += p * v[at(key, dim_v) + d].abs();
                    }
                    r.out[o_at + d] = o;
                    delta += o * dout[o_at + d];
                    delta_bound += (o * dout[o_at + d]).abs();
                }
                for (&key, p) in keys.iter().zip(&p) {
                    let (mut dp, mut dp_bound) = (0.0, 0.0);
                    for d in 0..dim_v {
                        let dout = dout[o_at + d];
                        dp += dout * v[at(key, dim_v) + d];
                        dp_bound += (dout * v[at(key, dim_v) + d]).abs();
                        let to = at(key, dim_v) + d;
                        r.dv[to] = round(r.dv[to] + p * dout);
                        bound.dv[to] += p * dout.abs();
                    }
                    let ds = scale * p * (dp - delta);
                    let ds_bound = scale.abs() * p * (dp_bound + delta_bound);
                    for d in 0..dim_qk {
                        let to = at(key, dim_qk) + d;
                        r.dq[q_at + d] = round(r.dq[q_at + d] + ds * k[to]);
                        bound.dq[q_at + d] += ds_bound * k[to].abs();
                        r.dk[to] = round(r.dk[to] + ds * q[q_at + d]);
                        bound.dk[to] += ds_bound * q[q_at + d].abs();
                    }
                }
            }
        }
    }
    (r, bound)
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
    if error == 0.0 {
        0.0
    } else {
        error.sqrt() / scale
    }
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
    Results {
        out: wide(&x.out),
        lse: wide(&x.lse),
        dq: wide(&x.dq),
        dk: wide(&x.dk),
        dv: wide(&x.dv),
    }
}

/// The tolerance of a CPU kernel, for every tensor.
pub const TOLERANCE: f64 = 5e-6;

/// Runs a case on the calling thread and holds it against the reference.
pub fn check(name: &str, case: &Case) -> Results<f32> {
    let found = run(case, None, 1);
    let errors = errors(&widen(&found), &reference(case, Fault::None));
    for (tensor, error) in errors {
        assert!(
            error <= TOLERANCE,
            "{name}: {tensor} is off by {error:e}; all: {errors:?}"
        );
    }
    found
}

pub fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
}

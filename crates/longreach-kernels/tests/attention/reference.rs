//! Attention and its gradients in plain float64.

use half::bf16;

use crate::common::{Case, Results};
use crate::tensor::Tensor;

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
    let wide = |t: &Tensor| -> Vec<f64> { t.view().to_f32().iter().map(|&x| f64::from(x)).collect() };
    let (q, k, v, dout) = (wide(&case.q), wide(&case.k), wide(&case.v), wide(&case.dout));
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
            for tile in case.tiles.iter().filter(|t| t.batch.contains(&b) && t.q.contains(&s)) {
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
                        scale * q[q_at..q_at + dim_qk].iter().zip(k).map(|(x, y)| x * y).sum::<f64>()
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

//! The forward pass in float64.

use super::rows::{ROWS, bands_of, cut, tiles, visible};
use super::vector::{add_rows, dot};
use super::{Exact, Mismatch, Sizes, head_of, put_head};
use longreach_kernels::View;
use longreach_plan::{Band, Bands};
use rayon::prelude::*;

/// Output and log-sum-exp in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// `[batch, q_len, q_heads, value_dim]`; 0 in rows that see no key.
    pub out: Exact,
    /// Natural logarithm, `[batch, q_heads, q_len]`; -inf in rows that see no key.
    pub lse: Exact,
    /// `[batch, q_len, q_heads, value_dim]`.
    pub shape: [usize; 4],
}

/// Attention of `q` over `k` and `v` under `bands`, with scores `scale * q.k`.
///
/// Fails when the shapes or the bands do not fit each other.
pub fn forward(q: &View, k: &View, v: &View, bands: &Bands, scale: f64) -> Result<Forward, Mismatch> {
    let sizes = Sizes::of(q, k, v, bands)?;
    let heads: Vec<(Exact, Exact)> = (0..sizes.batch * sizes.q_heads)
        .into_par_iter()
        .map(|at| {
            let (batch, head) = (at / sizes.q_heads, at % sizes.q_heads);
            let kv_head = sizes.kv_head(head);
            let q = head_of(q, batch, head);
            let (k, v) = (head_of(k, batch, kv_head), head_of(v, batch, kv_head));
            one_head(&q, &k, &v, bands_of(bands, batch), scale, &sizes)
        })
        .collect();
    let mut out = Exact::zeros(sizes.batch * sizes.q_len * sizes.q_heads * sizes.value_dim);
    let mut lse = Exact::default();
    let shape = [sizes.q_len, sizes.q_heads, sizes.value_dim];
    for (at, (head_out, head_lse)) in heads.into_iter().enumerate() {
        put_head(&mut out.values, &head_out.values, at, shape);
        put_head(&mut out.bounds, &head_out.bounds, at, shape);
        lse.values.extend(head_lse.values);
        lse.bounds.extend(head_lse.bounds);
    }
    Ok(Forward { out, lse, shape: [sizes.batch, sizes.q_len, sizes.q_heads, sizes.value_dim] })
}

/// Output `[q_len, value_dim]` and log-sum-exp `[q_len]` of one head.
fn one_head(q: &[f64], k: &[f64], v: &[f64], bands: &[Band], scale: f64, sizes: &Sizes) -> (Exact, Exact) {
    let (dim, value_dim, kv_len) = (sizes.head_dim, sizes.value_dim, sizes.kv_len);
    let mut out = Exact::zeros(sizes.q_len * value_dim);
    let mut lse = Exact { values: vec![f64::NEG_INFINITY; sizes.q_len], bounds: vec![0.0; sizes.q_len] };
    // Score and its bound, then weight (twice): `ROWS` rows over all keys.
    let mut scores = vec![(0.0, 0.0); ROWS * kv_len];
    for first in (0..sizes.q_len).step_by(ROWS) {
        let block = first..sizes.q_len.min(first + ROWS);
        let seen: Vec<_> = block.clone().map(|row| visible(bands, row, kv_len)).collect();
        for tile in tiles(&seen) {
            for (r, row) in block.clone().enumerate() {
                let q_row = &q[row * dim..(row + 1) * dim];
                for j in cut(&seen[r], &tile).flatten() {
                    let (score, bound) = dot(q_row, &k[j * dim..(j + 1) * dim]);
                    scores[r * kv_len + j] = (scale * score, scale.abs() * bound);
                }
            }
        }
        for (r, row) in block.clone().enumerate() {
            let scores = &mut scores[r * kv_len..(r + 1) * kv_len];
            if seen[r].is_empty() {
                continue;
            }
            let keys = || seen[r].iter().cloned().flatten();
            lse.values[row] = log_sum_exp(keys().map(|j| scores[j].0));
            lse.bounds[row] = log_sum_exp(keys().map(|j| scores[j].1));
            for j in keys() {
                let weight = (scores[j].0 - lse.values[row]).exp();
                scores[j] = (weight, weight);
            }
        }
        for tile in tiles(&seen) {
            for (r, row) in block.clone().enumerate() {
                let at = row * value_dim..(row + 1) * value_dim;
                for keys in cut(&seen[r], &tile) {
                    let weights = &scores[r * kv_len + keys.start..r * kv_len + keys.end];
                    let (values, bounds) = (&mut out.values[at.clone()], &mut out.bounds[at.clone()]);
                    add_rows(values, bounds, weights, v, keys);
                }
            }
        }
    }
    (out, lse)
}

fn log_sum_exp(scores: impl Iterator<Item = f64> + Clone) -> f64 {
    // Not `f64::max`, which drops a NaN: a row that sees one must come out as NaN.
    let max = scores.clone().fold(f64::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a });
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + scores.map(|score| (score - max).exp()).sum::<f64>().ln()
}

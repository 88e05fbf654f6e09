//! The backward pass in float64.

use super::forward::{Forward, forward};
use super::rows::{KEYS, ROWS, bands_of, cut, tiles, visible};
use super::vector::{add, add_rows, add4, dot};
use super::{Exact, Mismatch, Sizes, expect, head_of, put_head};
use longreach_kernels::View;
use longreach_plan::{Band, Bands};
use rayon::prelude::*;
use std::ops::Range;

/// Gradients in float64.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward {
    /// `[batch, q_len, q_heads, head_dim]`.
    pub dq: Exact,
    /// `[batch, kv_len, kv_heads, head_dim]`.
    pub dk: Exact,
    /// `[batch, kv_len, kv_heads, value_dim]`.
    pub dv: Exact,
}

/// The gradients of `sum(dout * out)` with respect to `q`, `k` and `v`.
///
/// Fails when the shapes or the bands do not fit each other.
pub fn backward(
    q: &View,
    k: &View,
    v: &View,
    dout: &View,
    bands: &Bands,
    scale: f64,
) -> Result<Backward, Mismatch> {
    backward_of(&forward(q, k, v, bands, scale)?, q, k, v, dout, bands, scale)
}

/// [`backward`] with the forward results at hand, which must be those of the same inputs.
pub fn backward_of(
    forward: &Forward,
    q: &View,
    k: &View,
    v: &View,
    dout: &View,
    bands: &Bands,
    scale: f64,
) -> Result<Backward, Mismatch> {
    let sizes = Sizes::of(q, k, v, bands)?;
    let shape = [sizes.batch, sizes.q_len, sizes.q_heads, sizes.value_dim];
    expect("the shape of dout", dout.shape(), shape)?;
    expect("the shape of the forward results", forward.shape, shape)?;
    let heads: Vec<Backward> = (0..sizes.batch * sizes.q_heads)
        .into_par_iter()
        .map(|at| {
            let (batch, head) = (at / sizes.q_heads, at % sizes.q_heads);
            let kv_head = sizes.kv_head(head);
            let inputs = Head {
                q: head_of(q, batch, head),
                k: head_of(k, batch, kv_head),
                v: head_of(v, batch, kv_head),
                dout: head_of(dout, batch, head),
                lse: &forward.lse.values[at * sizes.q_len..(at + 1) * sizes.q_len],
                delta: deltas(forward, dout, batch, head),
                scale,
                sizes,
            };
            inputs.gradients(bands_of(bands, batch))
        })
        .collect();
    Ok(gather(heads, &sizes))
}

/// For each row of a head, `sum(dout * out)` and its bound.
fn deltas(forward: &Forward, dout: &View, batch: usize, head: usize) -> Vec<(f64, f64)> {
    let [_, len, heads, dim] = forward.shape;
    let row = |s: usize| {
        let at = ((batch * len + s) * heads + head) * dim;
        (0..dim).fold((0.0, 0.0), |(value, bound), d| {
            let dout = f64::from(dout.get([batch, s, head, d]));
            let (out, out_bound) = (forward.out.values[at + d], forward.out.bounds[at + d]);
            (value + dout * out, bound + dout.abs() * out_bound)
        })
    };
    (0..len).map(row).collect()
}

/// Puts the heads in their places; the heads of a group add to their kv head in ascending order.
fn gather(heads: Vec<Backward>, sizes: &Sizes) -> Backward {
    let (q_len, kv_len) = (sizes.q_len, sizes.kv_len);
    let group = sizes.q_heads / sizes.kv_heads;
    let mut all = Backward {
        dq: Exact::zeros(sizes.batch * q_len * sizes.q_heads * sizes.head_dim),
        dk: Exact::zeros(sizes.batch * kv_len * sizes.kv_heads * sizes.head_dim),
        dv: Exact::zeros(sizes.batch * kv_len * sizes.kv_heads * sizes.value_dim),
    };
    let put = |all: &mut Exact, part: &Exact, at: usize, shape: [usize; 3]| {
        put_head(&mut all.values, &part.values, at, shape);
        put_head(&mut all.bounds, &part.bounds, at, shape);
    };
    for (at, head) in heads.iter().enumerate() {
        put(&mut all.dq, &head.dq, at, [q_len, sizes.q_heads, sizes.head_dim]);
    }
    for (at, heads) in heads.chunks(group.max(1)).enumerate() {
        let dk = sum(heads.iter().map(|head| &head.dk));
        let dv = sum(heads.iter().map(|head| &head.dv));
        put(&mut all.dk, &dk, at, [kv_len, sizes.kv_heads, sizes.head_dim]);
        put(&mut all.dv, &dv, at, [kv_len, sizes.kv_heads, sizes.value_dim]);
    }
    all
}

fn sum<'a>(mut parts: impl Iterator<Item = &'a Exact>) -> Exact {
    let mut total = parts.next().cloned().unwrap_or_default();
    for part in parts {
        let add = |total: &mut [f64], part: &[f64]| total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
        add(&mut total.values, &part.values);
        add(&mut total.bounds, &part.bounds);
    }
    total
}

/// What one query head's gradients are made of, each a contiguous matrix.
struct Head<'a> {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dout: Vec<f64>,
    lse: &'a [f64],
    delta: Vec<(f64, f64)>,
    scale: f64,
    sizes: Sizes,
}

/// The weights of a block of rows over one tile of keys, each with its bound.
struct Weights {
    /// Attention weights.
    p: [[(f64, f64); KEYS]; ROWS],
    /// Gradients of the unscaled scores.
    ds: [[(f64, f64); KEYS]; ROWS],
}

impl Head<'_> {
    fn gradients(&self, bands: &[Band]) -> Backward {
        let Sizes { q_len, kv_len, head_dim, value_dim, .. } = self.sizes;
        let mut grad = Backward {
            dq: Exact::zeros(q_len * head_dim),
            dk: Exact::zeros(kv_len * head_dim),
            dv: Exact::zeros(kv_len * value_dim),
        };
        let mut weights = Box::new(Weights { p: [[(0.0, 0.0); KEYS]; ROWS], ds: [[(0.0, 0.0); KEYS]; ROWS] });
        for first in (0..q_len).step_by(ROWS) {
            let block = first..q_len.min(first + ROWS);
            let seen: Vec<_> = block.clone().map(|row| visible(bands, row, kv_len)).collect();
            for tile in tiles(&seen) {
                let parts: Vec<Vec<_>> = seen.iter().map(|keys| cut(keys, &tile).collect()).collect();
                for (r, row) in block.clone().enumerate() {
                    for keys in &parts[r] {
                        self.weigh(&mut weights, r, row, tile.start, keys.clone());
                        let at = row * head_dim..(row + 1) * head_dim;
                        let ds = &weights.ds[r][keys.start - tile.start..keys.end - tile.start];
                        let (values, bounds) = (&mut grad.dq.values[at.clone()], &mut grad.dq.bounds[at]);
                        add_rows(values, bounds, ds, &self.k, keys.clone());
                    }
                }
                for r in (0..block.len()).step_by(4) {
                    let parts = &parts[r..block.len().min(r + 4)];
                    let (p, ds) = (&weights.p[r..], &weights.ds[r..]);
                    scatter(&mut grad.dk, ds, &self.q, first + r, parts, tile.start, head_dim);
                    scatter(&mut grad.dv, p, &self.dout, first + r, parts, tile.start, value_dim);
                }
            }
        }
        grad
    }

    /// Fills the weights of row `row` (number `r` of its block) over `keys`.
    fn weigh(&self, weights: &mut Weights, r: usize, row: usize, tile: usize, keys: Range<usize>) {
        let Sizes { head_dim, value_dim, .. } = self.sizes;
        let q = &self.q[row * head_dim..(row + 1) * head_dim];
        let dout = &self.dout[row * value_dim..(row + 1) * value_dim];
        let (delta, delta_bound) = self.delta[row];
        for j in keys {
            let (score, _) = dot(q, &self.k[j * head_dim..(j + 1) * head_dim]);
            let (dp, dp_bound) = dot(dout, &self.v[j * value_dim..(j + 1) * value_dim]);
            let p = (self.scale * score - self.lse[row]).exp();
            let ds = self.scale * p * (dp - delta);
            weights.p[r][j - tile] = (p, p);
            weights.ds[r][j - tile] = (ds, self.scale.abs() * p * (dp_bound + delta_bound));
        }
    }
}

/// Adds `weights[r][j] * x[first + r]` to row j of `grad`, for up to four rows and the keys that each sees.
fn scatter(
    grad: &mut Exact,
    weights: &[[(f64, f64); KEYS]],
    x: &[f64],
    first: usize,
    parts: &[Vec<Range<usize>>],
    tile: usize,
    dim: usize,
) {
    let row = |r: usize| &x[(first + r) * dim..(first + r + 1) * dim];
    // Keys that all four rows see are added in one pass over the key's row.
    let common = match parts {
        [a, b, c, d] => match (&a[..], &b[..], &c[..], &d[..]) {
            ([a], [b], [c], [d]) => {
                let start = a.start.max(b.start).max(c.start).max(d.start);
                start..a.end.min(b.end).min(c.end).min(d.end).max(start)
            }
            _ => 0..0,
        },
        _ => 0..0,
    };
    for j in common.clone() {
        let at = j * dim..(j + 1) * dim;
        let w = std::array::from_fn(|r| weights[r][j - tile]);
        let x = std::array::from_fn(row);
        add4(&mut grad.values[at.clone()], &mut grad.bounds[at], w, x);
    }
    for (r, keys) in parts.iter().enumerate() {
        for j in keys.iter().cloned().flatten().filter(|j| !common.contains(j)) {
            let at = j * dim..(j + 1) * dim;
            add(&mut grad.values[at.clone()], &mut grad.bounds[at], weights[r][j - tile], row(r));
        }
    }
}

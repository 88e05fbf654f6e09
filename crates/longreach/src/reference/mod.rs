//! Plain float64 attention, forward and backward, for any bands: what every other result is compared with.
//!
//! It shares no code with the kernels or the engine. It keeps a block of query rows at a time, so memory
//! grows with the sequence, not with its square. Each sum runs in one fixed order, so the result is the same
//! on any number of threads. A (query, key) pair that no band shows is never read: what stands in padding,
//! NaN included, changes nothing.
//!
//! Beside each value stands its *bound*: the same formula over the absolute values of its summands, which is
//! the scale that rounding errors are measured on where the value itself nearly cancels.

pub mod accuracy;
mod backward;
mod forward;
mod rows;
mod vector;

pub use accuracy::Errors;
pub use backward::{Backward, backward, backward_of};
pub use forward::{Forward, forward};

use longreach_kernels::View;
use longreach_plan::Bands;

/// A tensor in float64 with the bound of each element.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exact {
    /// The elements, row-major.
    pub values: Vec<f64>,
    /// For each element, the same formula over absolute values of the summands.
    pub bounds: Vec<f64>,
}

impl Exact {
    fn zeros(len: usize) -> Self {
        Self { values: vec![0.0; len], bounds: vec![0.0; len] }
    }
}

/// Inputs that do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {given}, expected {expected}")]
pub struct Mismatch {
    /// The argument and the property of it.
    pub what: &'static str,
    /// What was given.
    pub given: String,
    /// What fits the other arguments.
    pub expected: String,
}

/// The sizes of a call, checked once.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    q_len: usize,
    kv_len: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
}

impl Sizes {
    fn of(q: &View, k: &View, v: &View, bands: &Bands) -> Result<Self, Mismatch> {
        let [batch, q_len, q_heads, head_dim] = q.shape();
        let [_, kv_len, kv_heads, _] = k.shape();
        let value_dim = v.shape()[3];
        expect("the shape of k", k.shape(), [batch, kv_len, kv_heads, head_dim])?;
        expect("the shape of v", v.shape(), [batch, kv_len, kv_heads, value_dim])?;
        if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
            return Err(Mismatch {
                what: "the number of heads of q",
                given: q_heads.to_string(),
                expected: format!("a multiple of the {kv_heads} heads of k"),
            });
        }

        expect("the length of the bands", [bands.q_len, bands.kv_len], [q_len, kv_len])?;
        if bands.rows.len() != 1 && bands.rows.len() != batch {
            return Err(Mismatch {
                what: "the number of batch rows of the bands",
                given: bands.rows.len().to_string(),
                expected: format!("1 or {batch}"),
            });
        }
        Ok(Self { batch, q_len, kv_len, q_heads, kv_heads, head_dim, value_dim })
    }

    /// The kv head that serves query head `head`.
    fn kv_head(&self, head: usize) -> usize {
        head / (self.q_heads / self.kv_heads)
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &'static str, given: T, expected: T) -> Result<(), Mismatch> {
    if given == expected {
        return Ok(());
    }
    Err(Mismatch { what, given: format!("{given:?}"), expected: format!("{expected:?}") })
}

/// One head of a view as a contiguous float64 matrix `[sequence, dim]`.
fn head_of(view: &View, batch: usize, head: usize) -> Vec<f64> {
    let [_, len, _, dim] = view.shape();
    let mut out = Vec::with_capacity(len * dim);
    for s in 0..len {
        out.extend((0..dim).map(|d| f64::from(view.get([batch, s, head, d]))));
    }
    out
}

/// Writes one head's `[sequence, dim]` matrix into `[batch, sequence, heads, dim]`.
fn put_head(all: &mut [f64], part: &[f64], at: usize, [len, heads, dim]: [usize; 3]) {
    let (batch, head) = (at / heads, at % heads);
    for s in 0..len {
        let to = ((batch * len + s) * heads + head) * dim;
        all[to..to + dim].copy_from_slice(&part[s * dim..(s + 1) * dim]);
    }
}

#[cfg(test)]
mod tests;

//! What is done once a row: finishing, merging normalised parts, delta.

use super::memory::Shared;
use super::pack;
use crate::context::Context;
use crate::error::Error;
use crate::state::{State, expect_len};
use crate::tensor::View;

/// Rows of one work item.
const ROWS: usize = 64;

/// Normalises a carried state of `shape` `[batch, query rows, query heads, dim of v]`: `out` (of that
/// shape) = acc / sum, `lse` (`[batch, query heads, query rows]`) = max + ln sum.
///
/// A row that has seen no key gives exactly 0 and -inf. Fails when a length does not fit `shape`.
pub fn finish(
    cx: &Context,
    state: &State,
    shape: [usize; 4],
    out: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    let [batches, rows, heads, dim] = shape;
    state.check(shape)?;
    expect_len("out", out.len(), &shape)?;
    expect_len("lse", lse.len(), &[batches, heads, rows])?;
    for ((lse, &max), &sum) in lse.iter_mut().zip(&*state.max).zip(&*state.sum) {
        *lse = if sum == 0.0 { f32::NEG_INFINITY } else { (f64::from(max) + f64::from(sum).ln()) as f32 };
    }
    let out = Shared::new(out);
    let (acc, sum) = (&*state.acc, &*state.sum);
    let blocks = rows.div_ceil(ROWS);
    cx.for_each(
        batches * blocks,
        || (),
        |(), item| {
            let (b, first) = (item / blocks, item % blocks * ROWS);
            let last = rows.min(first + ROWS);
            // SAFETY: items write distinct rows.
            let out = unsafe { out.slice((b * rows + first) * heads * dim..(b * rows + last) * heads * dim) };
            for s in first..last {
                for h in 0..heads {
                    let from = (b * heads + h) * rows + s;
                    let to = ((s - first) * heads + h) * dim;
                    let sum = sum[from];
                    let acc = &acc[from * dim..(from + 1) * dim];
                    if sum == 0.0 {
                        out[to..to + dim].fill(0.0);
                    } else {
                        for (out, acc) in out[to..to + dim].iter_mut().zip(acc) {
                            *out = acc / sum;
                        }
                    }
                }
            }
            (cx.tick)();
        },
    );
    Ok(())
}

/// Adds a normalised part, `(out, lse)` over other keys of the same rows, into the carried state: for
/// kernels that cannot carry.
///
/// `part_out` is `[batch, query rows, query heads, dim of v]`, `part_lse` `[batch, query heads, query
/// rows]`. Rows with lse = -inf change nothing, whatever their `out` holds. Fails when a length does not
/// fit.
pub fn merge(part_out: &View, part_lse: &[f32], state: &mut State) -> Result<(), Error> {
    let shape = part_out.shape();
    let [batches, rows, heads, dim] = shape;
    state.check(shape)?;
    expect_len("part_lse", part_lse.len(), &[batches, heads, rows])?;
    let mut part = vec![0.0; dim];
    for (at, &lse) in part_lse.iter().enumerate() {
        if lse == f32::NEG_INFINITY {
            continue;
        }
        let (b, h, s) = (at / rows / heads, at / rows % heads, at % rows);
        pack::row(part_out, [b, s, h], &mut part);
        let max = state.max[at].max(lse);
        // One of the two factors is exactly 1 and the other at most 1: nothing overflows.
        let old = (state.max[at] - max).exp();
        let new = (lse - max).exp();
        state.max[at] = max;
        state.sum[at] = state.sum[at] * old + new;
        for (acc, part) in state.acc[at * dim..(at + 1) * dim].iter_mut().zip(&part) {
            *acc = *acc * old + part * new;
        }
    }
    Ok(())
}

/// `delta` (`[batch, query heads, query rows]`) = the sum over the dim of `dout * out`, which the
/// backward needs; `out` is contiguous and of `dout`'s shape. Fails when a length does not fit.
pub fn delta(cx: &Context, dout: &View, out: &[f32], delta: &mut [f32]) -> Result<(), Error> {
    let shape = dout.shape();
    let [batches, rows, heads, dim] = shape;
    expect_len("out", out.len(), &shape)?;
    expect_len("delta", delta.len(), &[batches, heads, rows])?;
    // In the order and with the roundings of the product that gives dP: for a row that sees one key, out
    // is that key's value and dP - delta is exactly 0, as its gradient must be.
    let arch = pulp::Arch::new();
    let delta = Shared::new(delta);
    let blocks = rows.div_ceil(ROWS);
    cx.for_each(
        batches * heads * blocks,
        || vec![0.0; dim],
        |scratch, item| {
            let (b, h) = (item / blocks / heads, item / blocks % heads);
            let first = item % blocks * ROWS;
            let last = rows.min(first + ROWS);
            let at = (b * heads + h) * rows;
            // SAFETY: items write distinct rows.
            let delta = unsafe { delta.slice(at + first..at + last) };
            for (delta, s) in delta.iter_mut().zip(first..last) {
                pack::row(dout, [b, s, h], scratch);
                let out = &out[((b * rows + s) * heads + h) * dim..][..dim];
                *delta = arch.dispatch(|| {
                    let terms = scratch.iter().zip(out);
                    terms.fold(0.0f32, |sum, (&x, &y)| x.mul_add(y, sum))
                });
            }
            (cx.tick)();
        },
    );
    Ok(())
}

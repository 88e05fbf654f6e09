//! Gradients, added up in float32.

use super::context::Context;
use super::cudnn::Element;
use super::held::Held;
use super::memory::Memory;
use super::rows::{Extent, Move, Piece, Rows4};
use crate::error::Error;
use std::ops::Range;

/// A contiguous float32 tensor `[batch, rows, heads, dim]` that a backward adds to.
///
/// Rows to which nothing has been added since it was cleared need no zeros: the first to come is written, not added.
#[derive(Debug)]
pub struct Sum {
    pub(super) memory: Memory,
    pub(super) shape: [usize; 4],
    held: Held,
}

impl Sum {
    /// What is in `memory` counts, until it is [cleared](Sum::clear).
    pub fn new(memory: Memory, shape: [usize; 4]) -> Result<Self, Error> {
        memory.check_f32("a gradient", &shape)?;
        let [batch, rows, heads, _] = shape;
        Ok(Self { memory, shape, held: Held::new([batch, heads, rows]) })
    }

    /// Makes all rows zero, without touching them.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// Refuses a sum of another shape.
    pub(super) fn check(&self, what: &'static str, shape: [usize; 4]) -> Result<(), Error> {
        if self.shape == shape {
            return Ok(());
        }
        Err(Error::Shape { what, given: self.shape, needs: format!("the others make it {shape:?}") })
    }

    /// Queues the addition of rows of `part`, contiguous `[batch, rows, heads, dim]` with `len` rows, of a call on these
    /// batch entries and heads.
    ///
    /// # Safety
    /// The part must be of that size and valid until the stream has run this; the pieces' rows within it.
    pub(super) unsafe fn add(
        &mut self,
        cx: &Context,
        element: Element,
        (part, len): (u64, usize),
        [batch, heads]: [&Range<usize>; 2],
        pieces: &[Piece],
    ) -> Result<(), Error> {
        let [_, rows, all_heads, dim] = self.shape;
        let extent = Extent { batches: 1, heads: heads.len(), dim };
        for (i, b) in batch.clone().enumerate() {
            let from =
                Rows4::contiguous(part + (i * len * heads.len() * dim * 2) as u64, len, heads.len(), dim);
            let first = (b * rows * all_heads + heads.start) * dim;
            let to = Rows4::contiguous(self.memory.address() + (first * 4) as u64, rows, all_heads, dim);
            let [mut puts, mut adds] = [Vec::new(), Vec::new()];
            for &(at, row, count) in pieces {
                for (fresh, run) in self.held.runs(b, heads.start, &(row..row + count)) {
                    let piece = (at + run.start - row, run.start, run.len());
                    if fresh { &mut puts } else { &mut adds }.push(piece);
                }
                self.held.add(b, heads, &(row..row + count));
            }
            // SAFETY: rows are within the sum; the rest is the caller's promise.
            unsafe {
                cx.kernels.rows(Move::Put(element), from, to, &puts, extent)?;
                cx.kernels.rows(Move::Add(element), from, to, &adds, extent)?;
            }
        }
        Ok(())
    }
}

/// Queues zeros into the rows of a cleared sum to which nothing was added, so that its memory is what it stands for.
pub fn settle(cx: &Context, sum: &mut Sum) -> Result<(), Error> {
    cx.ready()?;
    let [batch, rows, heads, dim] = sum.shape;
    if heads == 0 {
        return Ok(());
    }
    for b in 0..batch {
        for (fresh, run) in sum.held.runs(b, 0, &(0..rows)) {
            if fresh {
                let first = (b * rows + run.start) * heads * dim;
                let address = sum.memory.address() + (first * 4) as u64;
                // SAFETY: the rows are within the sum, whose memory is valid, as its maker promised.
                unsafe { cx.kernels.fill(address, 0.0, run.len() * heads * dim)? };
                sum.held.add(b, &(0..heads), &run);
            }
        }
    }
    Ok(())
}

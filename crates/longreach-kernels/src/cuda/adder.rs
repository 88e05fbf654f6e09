//! Adding float32 rows that another PE has summed.

use super::driver;
use super::kernels::Kernels;
use super::memory::{Memory, View};
use super::merge::check_rows;
use super::operand::element;
use super::rows::{Extent, Move, Rows4};
use crate::error::Error;
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// Adds rows on a stream of its own, beside a [`Context`](super::Context); used by one thread at a time.
pub struct Adder {
    stream: Arc<CudaStream>,
    kernels: Kernels,
}

impl std::fmt::Debug for Adder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adder").finish_non_exhaustive()
    }
}

impl Adder {
    /// Adds on `stream`. Fails where NVRTC is absent.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        Ok(Self { stream: stream.clone(), kernels: Kernels::new(stream)? })
    }

    /// Queues the addition of rows of `from` to rows of `to`, both float32 of `width` columns, a multiple of 4: of each
    /// piece `(from, to, rows)` the rows from `from` on to those from `to` on, none of `to` twice.
    pub fn add(
        &self,
        from: Memory,
        to: Memory,
        width: usize,
        pieces: &[(usize, usize, usize)],
    ) -> Result<(), Error> {
        let shape = |memory: Memory| [memory.bytes() / 4 / width.max(1), width];
        from.check_f32("rows to add", &shape(from))?;
        to.check_f32("rows to add to", &shape(to))?;
        if !width.is_multiple_of(4) {
            return Err(Error::Refused(format!("rows of {width} columns: a GPU adds multiples of 4")));
        }
        let beyond = |&(at, row, count): &(usize, usize, usize)| {
            let ends = at.checked_add(count).zip(row.checked_add(count));
            ends.is_none_or(|(at, row)| at > shape(from)[0] || row > shape(to)[0])
        };
        if let Some(piece) = pieces.iter().find(|piece| beyond(piece)) {
            let rows = [shape(from)[0], shape(to)[0]];
            return Err(Error::Refused(format!(
                "rows {piece:?} (from, to, count) of {rows:?}: they reach beyond"
            )));
        }
        self.stream.context().bind_to_thread().map_err(driver)?;
        let rows = |memory: Memory| Rows4::contiguous(memory.address(), shape(memory)[0], 1, width);
        let extent = Extent { batches: 1, heads: 1, dim: width };
        // SAFETY: all rows are within the memory, which is valid, as its maker promised.
        unsafe { self.kernels.rows(Move::AddFloat, rows(from), rows(to), pieces, extent) }
    }

    /// Queues the rounding of `from`, float32 of the view's shape, to the view `to` of bf16 or f16.
    pub fn round(&self, from: Memory, to: &View) -> Result<(), Error> {
        let [batches, rows, heads, dim] = to.shape();
        from.check_f32("the tensor to round", &to.shape())?;
        check_rows("the tensor to round to", to)?;
        let element = element(&[("the tensor to round to", to)])?;
        self.stream.context().bind_to_thread().map_err(driver)?;
        let from = Rows4::contiguous(from.address(), rows, heads, dim);
        let to = Rows4 { address: to.at(0, 0, 0), strides: to.strides() };
        let extent = Extent { batches, heads, dim };
        // SAFETY: sizes have been checked; the memory is valid, as its maker promised.
        unsafe { self.kernels.rows(Move::Cast(element), from, to, &[(0, 0, rows)], extent) }
    }
}

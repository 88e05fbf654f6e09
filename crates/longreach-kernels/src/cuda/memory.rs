//! Memory of a GPU and strided views of it, as the kernels take them.

use crate::error::Error;
use crate::tensor::{DType, ViewError};

/// A piece of a GPU's memory.
///
/// What is in it, and when, is the caller's business: kernels are queued on the context's stream and work on it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    address: u64,
    bytes: usize,
}

impl Memory {
    /// `bytes` bytes from `address`.
    ///
    /// # Safety
    /// They are memory of the GPU whose context gets them, and stay so, written by nobody else where a kernel reads and
    /// touched by nobody else where it writes, until the work queued with them has run.
    pub const unsafe fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Address of the first byte.
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// Refuses memory that is not exactly a float32 tensor of `shape`, 16-byte aligned.
    pub(super) fn check_f32(self, what: &'static str, shape: &[usize]) -> Result<(), Error> {
        crate::state::expect_len(what, self.bytes / 4, shape)?;
        if !self.bytes.is_multiple_of(4) || !self.address.is_multiple_of(16) {
            return Err(Error::Refused(format!(
                "{what} begins at {:#x} and has {} bytes: float32 tensors on a GPU begin at multiples of 16 bytes",
                self.address, self.bytes
            )));
        }
        Ok(())
    }
}

/// A strided view `[batch, sequence, heads, dim]` of a GPU's memory; strides in elements, never negative.
#[derive(Clone, Copy, Debug)]
pub struct View {
    memory: Memory,
    dtype: DType,
    shape: [usize; 4],
    strides: [usize; 4],
}

impl View {
    /// A view with explicit strides; fails when it would reach beyond `memory`.
    pub fn strided(
        memory: Memory,
        dtype: DType,
        shape: [usize; 4],
        strides: [usize; 4],
    ) -> Result<Self, ViewError> {
        let len = memory.bytes / dtype.size();
        let needed = if shape.contains(&0) {
            Some(0)
        } else {
            let reach = |reach: usize, (&n, &stride): (&usize, &usize)| {
                reach.checked_add((n - 1).checked_mul(stride)?)
            };
            shape.iter().zip(&strides).try_fold(1usize, reach)
        };
        match needed {
            Some(needed) if needed <= len => Ok(Self { memory, dtype, shape, strides }),
            _ => Err(ViewError { shape, strides, needed: needed.unwrap_or(usize::MAX), len }),
        }
    }

    /// A row-major view; fails when `memory` is shorter than the shape.
    pub fn contiguous(memory: Memory, dtype: DType, shape: [usize; 4]) -> Result<Self, ViewError> {
        let row = shape[2].saturating_mul(shape[3]);
        let strides = [shape[1].saturating_mul(row), row, shape[3], 1];
        Self::strided(memory, dtype, shape, strides)
    }

    /// `[batch, sequence, heads, dim]`.
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Strides in elements, in the order of the shape.
    pub const fn strides(&self) -> [usize; 4] {
        self.strides
    }

    /// The element type.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Address of element `[batch, row, head, 0]`.
    pub(super) fn at(&self, batch: usize, row: usize, head: usize) -> u64 {
        let [sb, ss, sh, _] = self.strides;
        self.memory.address + ((batch * sb + row * ss + head * sh) * self.dtype.size()) as u64
    }

    /// Whether the columns of every row lie side by side from a 16-byte boundary on, no row over another.
    pub(super) fn is_aligned(&self) -> bool {
        let unit = 16 / self.dtype.size();
        let strides = self.shape.iter().zip(&self.strides).take(3);
        let apart = strides
            .filter(|(len, _)| **len > 1)
            .all(|(_, &stride)| stride > 0 && stride.is_multiple_of(unit));
        apart && self.memory.address.is_multiple_of(16) && (self.strides[3] == 1 || self.shape[3] == 1)
    }
}

/// Cuts scratch into pieces that begin at multiples of 256 bytes.
pub(super) struct Room {
    next: u64,
    first: u64,
}

/// What an address is rounded up to.
const STEP: u64 = 256;

impl Room {
    /// From `address` on; to count bytes only, from 0.
    pub(super) fn new(address: u64) -> Self {
        Self { next: address.next_multiple_of(STEP), first: address }
    }

    /// The next `bytes` bytes; fails where the address space ends.
    pub(super) fn take(&mut self, what: &'static str, shape: &[usize], size: usize) -> Result<u64, Error> {
        let bytes = shape.iter().try_fold(size, |bytes, &n| bytes.checked_mul(n));
        let end = bytes.and_then(|bytes| self.next.checked_add(bytes as u64)?.checked_next_multiple_of(STEP));
        let end = end.ok_or_else(|| Error::Overflow { what, shape: shape.to_vec() })?;
        Ok(std::mem::replace(&mut self.next, end))
    }

    /// Bytes that have been taken, whatever the scratch's alignment.
    pub(super) fn bytes(&self) -> usize {
        (self.next - self.first) as usize + STEP as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(address: u64, bytes: usize) -> Memory {
        // SAFETY: nothing is queued with it.
        unsafe { Memory::new(address, bytes) }
    }

    #[test]
    fn views_stay_within_their_memory_and_know_their_alignment() {
        let shape = [2, 3, 4, 8];
        let view = View::contiguous(memory(512, 2 * 192), DType::Bf16, shape).expect("a view");
        assert!(view.is_aligned());
        assert_eq!(view.at(1, 2, 3), 512 + 2 * (96 + 64 + 24));
        let short = View::contiguous(memory(512, 2 * 191), DType::Bf16, shape).expect_err("too short");
        assert_eq!((short.needed, short.len), (192, 191));
        let shifted = View::contiguous(memory(514, 384), DType::Bf16, shape).expect("a view");
        assert!(!shifted.is_aligned());
        let expanded = View::strided(memory(512, 384), DType::Bf16, shape, [96, 0, 8, 1]).expect("a view");
        assert!(!expanded.is_aligned(), "rows over each other");
        let columns = View::strided(memory(512, 384), DType::Bf16, [1, 1, 8, 24], [0, 0, 1, 8]);
        assert!(!columns.expect("a view").is_aligned(), "columns apart");
    }

    #[test]
    fn room_is_cut_at_boundaries_from_any_address() {
        let mut room = Room::new(1000);
        let parts = [room.take("a", &[3], 4).expect("a"), room.take("b", &[257], 1).expect("b")];
        assert_eq!(parts, [1024, 1280]);
        let mut counted = Room::new(0);
        counted.take("a", &[3], 4).and(counted.take("b", &[257], 1)).expect("a count");
        assert!(1000 + counted.bytes() as u64 >= 1280 + 257);
        assert!(matches!(room.take("c", &[usize::MAX, 2], 4), Err(Error::Overflow { .. })));
    }
}

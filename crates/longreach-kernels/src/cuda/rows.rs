//! Rows from one place on the GPU to another.

use super::cudnn::Element;
use super::driver;
use super::kernels::{BLOCKS, Kernels, THREADS, UNROLL, name};
use crate::error::Error;
use cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use std::ops::Range;

/// Elements of a piece are fewer than this, as the source counts them in 32 bits.
const ELEMENTS: usize = 1 << 31;
/// Pieces that a launch takes, as in the source.
const PIECES: usize = 32;

/// Where rows `[batch, rows, heads, dim]` are: address and strides in elements, of batch, row, head and column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows4 {
    pub address: u64,
    pub strides: [usize; 4],
}

impl Rows4 {
    /// Rows without gaps.
    pub fn contiguous(address: u64, rows: usize, heads: usize, dim: usize) -> Self {
        Self { address, strides: [rows * heads * dim, heads * dim, dim, 1] }
    }
}

/// Sizes of what is moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub batches: usize,
    pub heads: usize,
    pub dim: usize,
}

/// Which rows of one end are which of the other: `(from, to, rows)`.
pub(super) type Piece = (usize, usize, usize);

/// The pieces of gathered `ranges` against the rows from 0 on.
pub(super) fn gathered(ranges: &[Range<usize>]) -> Vec<Piece> {
    let starts = ranges.iter().scan(0, |next, range| Some(std::mem::replace(next, *next + range.len())));
    ranges.iter().zip(starts).map(|(range, start)| (range.start, start, range.len())).collect()
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    from: [i64; 4],
    to: [i64; 3],
    heads: i32,
    dim: i32,
    flat: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Pieces {
    from: [i64; PIECES],
    to: [i64; PIECES],
    rows: [i64; PIECES],
}

// SAFETY: plain integers in C's order, as the source declares them.
unsafe impl DeviceRepr for Shape {}
// SAFETY: as above.
unsafe impl DeviceRepr for Pieces {}

/// What becomes of rows on their way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    /// 16-bit elements that lie side by side from a 16-byte boundary on are copied.
    Copy,
    /// 16-bit elements are copied one by one.
    CopyStrided,
    /// 16-bit elements are added into float32.
    Add(Element),
    /// Float32 is added into float32.
    AddFloat,
    /// The same as [`Move::Add`] where there was nothing.
    Put(Element),
    /// Float32 is rounded to 16-bit elements.
    Cast(Element),
}

impl Kernels {
    /// Moves the rows of `pieces`, of all batch entries.
    ///
    /// # Safety
    /// The addresses are of memory that has these rows and stays valid until the stream has run the work.
    pub unsafe fn rows(
        &self,
        what: Move,
        from: Rows4,
        to: Rows4,
        pieces: &[Piece],
        extent: Extent,
    ) -> Result<(), Error> {
        let (kernel, wide) = match what {
            Move::Copy => ("copy".to_owned(), 8),
            Move::CopyStrided => ("copy_strided".to_owned(), 1),
            Move::Add(element) => (name("add", element), 8),
            Move::AddFloat => ("add_f32".to_owned(), 4),
            Move::Put(element) => (name("put", element), 8),
            Move::Cast(element) => (name("cast", element), 8),
        };
        let [a, b, c, d] = from.strides.map(|stride| stride as i64);
        let [x, y, z, _] = to.strides.map(|stride| stride as i64);
        let Extent { batches, heads, dim } = extent;
        let row = heads * dim;
        let adjacent = |rows: &Rows4| rows.strides[1..] == [row, dim, 1];
        let flat = i32::from(adjacent(&from) && adjacent(&to));
        let shape = Shape { from: [a, b, c, d], to: [x, y, z], heads: heads as i32, dim: dim as i32, flat };
        let most = (ELEMENTS / row.max(1)).max(1);
        let pieces: Vec<Piece> = pieces.iter().flat_map(|&piece| cut(piece, most)).collect();
        for pieces in pieces.chunks(PIECES) {
            let longest = pieces.iter().map(|piece| piece.2).max().unwrap_or(0);
            if longest == 0 || batches == 0 {
                continue;
            }
            let mut table = Pieces { from: [0; PIECES], to: [0; PIECES], rows: [0; PIECES] };
            for (i, &(from, to, rows)) in pieces.iter().enumerate() {
                [table.from[i], table.to[i], table.rows[i]] = [from, to, rows].map(|row| row as i64);
            }
            let blocks = (longest * row).div_ceil(wide * THREADS * UNROLL).min(BLOCKS);
            let grid_dim = (blocks as u32, pieces.len() as u32, batches as u32);
            let mut launch = self.start(&kernel);
            launch.arg(&from.address).arg(&to.address).arg(&shape).arg(&table);
            let config = LaunchConfig { grid_dim, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the arguments are the kernel's; the memory is the caller's promise.
            unsafe { launch.launch(config) }.map_err(driver)?;
        }
        Ok(())
    }
}

/// A piece in pieces of at most `most` rows.
fn cut((from, to, rows): Piece, most: usize) -> impl Iterator<Item = Piece> {
    (0..rows).step_by(most).map(move |at| (from + at, to + at, most.min(rows - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_ranges_follow_each_other() {
        assert_eq!(gathered(&[7..9, 0..1, 4..8]), [(7, 0, 2), (0, 2, 1), (4, 3, 4)]);
    }

    #[test]
    fn long_pieces_are_cut() {
        assert_eq!(cut((10, 0, 7), 3).collect::<Vec<_>>(), [(10, 0, 3), (13, 3, 3), (16, 6, 1)]);
    }
}

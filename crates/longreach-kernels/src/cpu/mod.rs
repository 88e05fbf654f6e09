//! Kernels on CPU threads: matrix products from the `gemm` crate, a vectorised softmax between them.
//!
//! Scores are kept *transposed*, a row for each key and a column for each query row, in blocks of at most
//! 512 keys by about 128 columns. A column's softmax then runs down the rows with one lane
//! for each query row: no reduction across lanes, the same bits at any vector width, and K and V are used
//! as they lie in memory.

mod backward;
mod columns;
mod exp;
mod forward;
mod gemm;
mod memory;
mod merge;
mod pack;
mod probe;
mod softmax;

use crate::shapes::Shapes;

pub use backward::backward;
pub use forward::forward;
pub use merge::{delta, finish, merge};
pub use probe::{GemmRate, gemm_rate};

/// Keys of a block, counted from a tile's first gathered key. Part of the result's bits; the products of
/// a block sum this many terms in one go, which `gemm` does without cutting the sum.
pub(crate) const KEYS: usize = 512;

/// Query rows of a block, counted from a tile's first row. Part of the result's bits.
pub(crate) const ROWS: usize = 128;

/// Columns to aim for: tiles of few rows put several heads of a group side by side.
pub(crate) const COLUMNS: usize = 128;

/// Lanes that column counts are rounded up to: the widest vector of float32.
pub(crate) const LANES: usize = 16;

/// Keys and columns that the products are given at least: with one or two, `gemm` takes other paths,
/// whose sums round differently.
pub(crate) const FEW: usize = 4;

/// Bytes of scratch that each thread of a [`forward`] or [`backward`] takes at most, whatever the tiles, beside what
/// `gemm` keeps (about one level-2 cache a thread). 0 where the heads do not fit each other, which those refuse.
pub fn scratch(q_heads: usize, kv_heads: usize, head_dim: usize, value_dim: usize) -> usize {
    let [q, k, v] = [(q_heads, head_dim), (kv_heads, head_dim), (kv_heads, value_dim)];
    let shape = |(heads, dim)| [1, 1, heads, dim];
    Shapes::new(shape(q), shape(k), shape(v))
        .map_or(0, |shapes| forward::scratch(&shapes).max(backward::scratch(&shapes)))
}

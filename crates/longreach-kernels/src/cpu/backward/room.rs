//! The scratch of a backward item.

use crate::cpu::columns::{columns, heads_per_chunk};
use crate::cpu::memory::Scratch;
use crate::cpu::{FEW, KEYS, ROWS};
use crate::shapes::Shapes;
use crate::tile::{Gather, Tile};

/// The largest sizes among the blocks of a call.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    columns: usize,
    keys: usize,
    dim_qk: usize,
    dim_v: usize,
}

/// The scratch of an item. "By row" has the rows of the view one after another, "transposed" a row for
/// each element of the head_dim and a column for each (head, row).
pub(crate) struct Part<'a> {
    /// Queries, by row and transposed.
    pub q: &'a mut [f32],
    pub q_t: &'a mut [f32],
    /// Gradients of the output, by row and transposed.
    pub dout: &'a mut [f32],
    pub dout_t: &'a mut [f32],
    /// K and V of the block of keys, then [`FEW`] rows of zeros, so that a product of few keys can take
    /// some more.
    pub k: &'a mut [f32],
    pub v: &'a mut [f32],
    /// The sums of the item.
    pub dk: &'a mut [f32],
    pub dv: &'a mut [f32],
    /// Scores, then weights, `[keys][columns]`.
    pub p: &'a mut [f32],
    /// dP, then dS, `[keys][columns]`.
    pub ds: &'a mut [f32],
    /// dQ of a block of rows, by column.
    pub dq: &'a mut [f32],
    /// By column.
    pub lse: &'a mut [f32],
    pub delta: &'a mut [f32],
    /// Room for a mask.
    pub lo: &'a mut [u32],
    pub len: &'a mut [u32],
}

impl Room {
    pub(crate) fn new(shapes: &Shapes, tiles: &[Tile]) -> Self {
        let keys = tiles.iter().map(|tile| Gather::new(tile.kv).keys()).max().unwrap_or(0);
        let rows = tiles.iter().map(|tile| tile.q.len()).max().unwrap_or(0);
        Self::of(shapes, rows, keys)
    }

    /// The room for tiles of at most `rows` rows and `keys` keys.
    pub(crate) fn of(shapes: &Shapes, rows: usize, keys: usize) -> Self {
        // A band may leave any smaller number of rows to a block.
        let widths = (1..=rows.min(ROWS)).map(|n| columns(n, heads_per_chunk(n, shapes.group)));
        Self {
            columns: widths.max().unwrap_or(0),
            keys: keys.min(KEYS) + FEW,
            dim_qk: shapes.dim_qk,
            dim_v: shapes.dim_v,
        }
    }

    /// Lengths of the parts, in the order of [`Part`].
    pub(crate) fn lens(&self) -> [usize; 15] {
        let Self { columns, keys, dim_qk, dim_v } = *self;
        let product = usize::saturating_mul;
        [
            product(columns, dim_qk),
            product(columns, dim_qk),
            product(columns, dim_v),
            product(columns, dim_v),
            product(keys, dim_qk),
            product(keys, dim_v),
            product(keys, dim_qk),
            product(keys, dim_v),
            product(columns, keys),
            product(columns, keys),
            product(columns, dim_qk),
            columns,
            columns,
            columns,
            columns,
        ]
    }

    /// Cuts `scratch` up for an item of `n` keys.
    pub(crate) fn parts<'a>(&self, scratch: &'a mut Scratch, n: usize) -> Part<'a> {
        let [q, q_t, dout, dout_t, k, v, dk, dv, p, ds, dq, lse, delta, lo, len] = scratch.parts(self.lens());
        Part {
            q,
            q_t,
            dout,
            dout_t,
            k: &mut k[..(n + FEW) * self.dim_qk],
            v: &mut v[..(n + FEW) * self.dim_v],
            dk: &mut dk[..n * self.dim_qk],
            dv: &mut dv[..n * self.dim_v],
            p,
            ds,
            dq,
            lse,
            delta,
            lo: bytemuck::cast_slice_mut(lo),
            len: bytemuck::cast_slice_mut(len),
        }
    }
}

//! K and V of a block of keys: as they lie in memory where that works, else gathered and widened.

use std::ops::Range;

use crate::cpu::{FEW, pack};
use crate::tensor::View;
use crate::tile::Gather;

/// Blocks with fewer keys than this are always packed, so that they can be padded with zero rows.
const SMALL: usize = 16;

/// The rows of a block of keys, `[keys][dim]` with a row stride.
pub(crate) struct Operands<'a> {
    pub k: (&'a [f32], usize),
    pub v: (&'a [f32], usize),
    /// Rows that may be read: what is packed has rows of zeros up to this number.
    pub rows: usize,
}

impl<'a> Operands<'a> {
    /// The gathered keys `keys` of batch entry and head `(batch, head)`; `packed` is room for both.
    pub(crate) fn new(
        (k, v): (&'a View<'a>, &'a View<'a>),
        (batch, head): (usize, usize),
        gather: &Gather,
        keys: Range<usize>,
        (k_packed, v_packed): (&'a mut [f32], &'a mut [f32]),
    ) -> Self {
        let n = keys.len();
        let mut pieces = gather.pieces(keys.clone());
        if let Some(piece) = pieces.next()
            && piece.len() == n
            && n >= SMALL
            && let Some(k) = pack::in_place(k, [batch, piece.start, head], n)
            && let Some(v) = pack::in_place(v, [batch, piece.start, head], n)
        {
            return Self { k, v, rows: n };
        }
        let rows = n.next_multiple_of(FEW);
        let pack = |view: &View, packed: &'a mut [f32]| {
            let dim = view.shape()[3];
            let packed = &mut packed[..rows * dim];
            pack::rows(view, (batch, head), gather.pieces(keys.clone()), packed);
            (&*packed, dim)
        };
        Self { k: pack(k, k_packed), v: pack(v, v_packed), rows }
    }
}

//! How the (head, row) pairs of a block become columns, and which keys each column sees.

use std::ops::Range;

use longreach_plan::Band;

use super::softmax::Mask;
use super::{COLUMNS, LANES};

/// Heads of a group that sit side by side as columns, where a block has `rows` rows and a work item
/// `heads` heads.
pub(crate) fn heads_per_chunk(rows: usize, heads: usize) -> usize {
    (COLUMNS / rows).clamp(1, heads)
}

/// Columns of `heads` heads of `rows` rows, rounded up to whole vectors.
pub(crate) fn columns(rows: usize, heads: usize) -> usize {
    (rows * heads).next_multiple_of(LANES)
}

/// Writes the mask of a block: `rows` (of the band) by `block` (of its keys `0..keys`), the rows repeated
/// for each head. Columns of padding see nothing.
pub(crate) fn mask<'a>(
    band: &Band,
    rows: &Range<i64>,
    keys: i64,
    block: &Range<i64>,
    heads: usize,
    [lo, len]: [&'a mut [u32]; 2],
) -> Mask<'a> {
    let count = (rows.end - rows.start) as usize;
    for (row, t) in rows.clone().enumerate() {
        let visible = band.visible(t, keys);
        let start = visible.start.clamp(block.start, block.end);
        lo[row] = (start - block.start) as u32;
        len[row] = (visible.end.clamp(start, block.end) - start) as u32;
    }
    for head in 1..heads {
        lo.copy_within(..count, head * count);
        len.copy_within(..count, head * count);
    }
    let columns = columns(count, heads);
    lo[heads * count..columns].fill(0);
    len[heads * count..columns].fill(0);
    Mask { lo: &lo[..columns], len: &len[..columns] }
}

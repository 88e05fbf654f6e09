//! The columns of a forward block: chunks of whole heads, and the room they need.

use std::ops::Range;

use crate::cpu::columns::{columns, heads_per_chunk};
use crate::cpu::{FEW, KEYS, ROWS};
use crate::shapes::Shapes;
use crate::tile::{Gather, Tile};

/// The heads of a work item.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    /// The key head.
    pub kv: usize,
    /// The first query head.
    pub first: usize,
    pub count: usize,
}

/// The columns of a block: for each chunk, a stretch of `stride` columns, each head's rows in turn.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    heads: Heads,
    per_chunk: usize,
    /// Columns of a chunk, rounded up to whole vectors.
    pub stride: usize,
    /// Number of chunks.
    pub chunks: usize,
    /// First query row.
    first_row: usize,
    /// Query rows, the same for every head.
    rows: usize,
}

impl Columns {
    pub(crate) fn new(heads: Heads, rows: Range<usize>) -> Self {
        let per_chunk = heads_per_chunk(rows.len(), heads.count);
        Self {
            heads,
            per_chunk,
            stride: columns(rows.len(), per_chunk),
            chunks: heads.count.div_ceil(per_chunk),
            first_row: rows.start,
            rows: rows.len(),
        }
    }

    /// Heads of a full chunk.
    pub(crate) fn heads_per_chunk(&self) -> usize {
        self.per_chunk
    }

    /// Columns of chunk `chunk`, padding included, among those of all chunks.
    pub(crate) fn of(&self, chunk: usize) -> Range<usize> {
        chunk * self.stride..(chunk + 1) * self.stride
    }

    /// Columns of chunk `chunk` that are rows of heads.
    pub(crate) fn used(&self, chunk: usize) -> usize {
        self.rows * self.per_chunk.min(self.heads.count - chunk * self.per_chunk)
    }

    /// For each head of chunk `chunk`: the head, its query rows, and their columns within the chunk.
    pub(crate) fn heads(
        &self,
        chunk: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> + use<> {
        let Self { heads, per_chunk, first_row, rows, .. } = *self;
        let first = chunk * per_chunk;
        (first..heads.count.min(first + per_chunk)).enumerate().map(move |(index, head)| {
            let columns = index * rows..(index + 1) * rows;
            (heads.first + head, first_row..first_row + rows, columns)
        })
    }
}

/// The largest sizes among the blocks of a call.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Columns of a chunk.
    columns: usize,
    /// Columns of all chunks of a block.
    all_columns: usize,
    keys: usize,
    dim_qk: usize,
    dim_v: usize,
}

impl Room {
    /// The room for blocks of `tiles`, of which each work item takes `count` heads.
    pub(crate) fn new(shapes: &Shapes, count: usize, tiles: &[Tile]) -> Self {
        let keys = tiles.iter().map(|tile| Gather::new(tile.kv).keys()).max().unwrap_or(0);
        let rows = tiles.iter().map(|tile| tile.q.len()).max().unwrap_or(0);
        Self::of(shapes, count, rows, keys)
    }

    /// The room for tiles of at most `rows` rows and `keys` keys.
    pub(crate) fn of(shapes: &Shapes, count: usize, rows: usize, keys: usize) -> Self {
        let mut room = Self {
            columns: 0,
            all_columns: 0,
            keys: keys.min(KEYS).next_multiple_of(FEW),
            dim_qk: shapes.dim_qk,
            dim_v: shapes.dim_v,
        };
        // A band may leave any smaller number of rows to a block.
        for rows in 1..=rows.min(ROWS) {
            let columns = Columns::new(Heads { kv: 0, first: 0, count }, 0..rows);
            room.columns = room.columns.max(columns.stride);
            room.all_columns = room.all_columns.max(columns.stride * columns.chunks);
        }
        room
    }

    /// Lengths of: transposed queries, acc, max, sum, rescale, mask (two parts), scores, K, V.
    pub(crate) fn lens(&self) -> [usize; 10] {
        let Self { columns, all_columns, keys, dim_qk, dim_v } = *self;
        let product = usize::saturating_mul;
        [
            product(all_columns, dim_qk),
            product(all_columns, dim_v),
            all_columns,
            all_columns,
            columns,
            columns,
            columns,
            // Also holds the rows of the queries before they are transposed.
            product(columns, keys.max(dim_qk)),
            product(keys, dim_qk),
            product(keys, dim_v),
        ]
    }
}

//! The forward: query blocks in parallel, each through its tiles in order.

use std::ops::Range;

use pulp::Arch;

use super::gemm::{Mat, gemm};
use super::memory::{Scratch, Shared};
use super::shapes::Shapes;
use super::{COLUMNS, FEW, KEYS, LANES, ROWS, pack, softmax};
use crate::context::Context;
use crate::error::Error;
use crate::state::State;
use crate::tensor::View;
use crate::tile::{Gather, Tile, seeing_rows, seen_keys, sees_all};

/// Blocks with fewer keys than this are always packed, so that they can be padded with zero rows.
const SMALL: usize = 16;

/// Query heads of a group that one work item takes at most: they share its packed K and V, and their
/// states stay in cache together.
const HEADS: usize = 8;

/// Attends `tiles`, in order, into `state`: `q` `[B, Sq, Hq, Dk]`, `k` `[B, Skv, Hkv, Dk]`, `v`
/// `[B, Skv, Hkv, Dv]`, `Hq` a multiple of `Hkv`.
///
/// Rows of K and V that no tile lists, or that the band hides from every row of a tile, are not read.
/// Fails, before anything is written, when shapes do not fit, when a tile reaches beyond the views or
/// lists a key row twice.
pub fn forward(
    cx: &Context,
    q: &View,
    k: &View,
    v: &View,
    scale: f32,
    tiles: &[Tile],
    state: &mut State,
) -> Result<(), Error> {
    let shapes = Shapes::new(q, k, v)?;
    state.check([shapes.batches, shapes.q_rows, shapes.q_heads, shapes.dim_v])?;
    shapes.check_tiles(tiles)?;
    if shapes.q_heads == 0 {
        return Ok(());
    }

    let gathers: Vec<Gather> = tiles.iter().map(|tile| Gather::new(tile.kv)).collect();
    let chains = chains(tiles);
    let heads = heads_per_item(&shapes, chains.len(), cx.threads());
    let splits = shapes.group.div_ceil(heads);
    let room = Room::new(&shapes, heads, tiles);
    let call = Call {
        q,
        k,
        v,
        scale,
        shapes,
        acc: Shared::new(state.acc),
        max: Shared::new(state.max),
        sum: Shared::new(state.sum),
        arch: Arch::new(),
    };
    let per_chain = shapes.batches * shapes.kv_heads * splits;
    cx.for_each(
        chains.len() * per_chain,
        || Scratch::new(room.lens()),
        |scratch, item| {
            // Later rows of a causal mask see more keys: the heavy items go first.
            let chain = &chains[chains.len() - 1 - item / per_chain];
            let (b, rest) = (
                item % per_chain / (shapes.kv_heads * splits),
                item % per_chain,
            );
            let (kv_head, split) = (rest / splits % shapes.kv_heads, rest % splits);
            let heads = Heads {
                kv: kv_head,
                first: kv_head * shapes.group + split * heads,
                count: heads.min(shapes.group - split * heads),
            };
            for block in chain {
                let tile = &tiles[block.tile];
                if tile.batch.contains(&b) {
                    call.block(
                        scratch,
                        &room,
                        b,
                        heads,
                        tile,
                        &gathers[block.tile],
                        &block.rows,
                    );
                }
            }
            (cx.tick)();
        },
    );
    Ok(())
}

/// Bytes of scratch that each thread of a [`forward`] over these views and tiles takes, beside what
/// `gemm` keeps (about one level-2 cache a thread).
pub fn forward_scratch(
    cx: &Context,
    q: &View,
    k: &View,
    v: &View,
    tiles: &[Tile],
) -> Result<usize, Error> {
    let shapes = Shapes::new(q, k, v)?;
    shapes.check_tiles(tiles)?;
    if shapes.q_heads == 0 {
        return Ok(0);
    }
    let heads = heads_per_item(&shapes, chains(tiles).len(), cx.threads());
    Ok(Scratch::bytes(Room::new(&shapes, heads, tiles).lens()))
}

/// Heads of a group in one item: as many as share a K/V block well, fewer where threads would idle.
/// Columns do not mix, so this changes no bit.
fn heads_per_item(shapes: &Shapes, chains: usize, threads: usize) -> usize {
    let mut heads = shapes.group.min(HEADS);
    let items =
        |heads: usize| chains * shapes.batches * shapes.kv_heads * shapes.group.div_ceil(heads);
    while threads > 1 && heads > 1 && items(heads) < 4 * threads {
        heads = heads.div_ceil(2);
    }
    heads
}

/// Some rows of a tile, counted from the tile's first.
#[derive(Debug)]
struct Block {
    tile: usize,
    rows: Range<usize>,
}

/// Cuts each tile into blocks of [`ROWS`] rows from its own first row, and chains blocks that share query
/// rows, in tile order: a chain owns its rows.
fn chains(tiles: &[Tile]) -> Vec<Vec<Block>> {
    let mut blocks: Vec<(Range<usize>, Block)> = Vec::new();
    for (index, tile) in tiles.iter().enumerate() {
        for first in (0..tile.q.len()).step_by(ROWS) {
            let rows = first..tile.q.len().min(first + ROWS);
            let global = tile.q.start + rows.start..tile.q.start + rows.end;
            blocks.push((global, Block { tile: index, rows }));
        }
    }
    blocks.sort_by_key(|(global, block)| (global.start, block.tile));
    let mut chains: Vec<Vec<Block>> = Vec::new();
    let mut end = 0;
    for (global, block) in blocks {
        match chains.last_mut() {
            Some(chain) if global.start < end => chain.push(block),
            _ => chains.push(vec![block]),
        }
        end = end.max(global.end);
    }
    for chain in &mut chains {
        chain.sort_by_key(|block| (block.tile, block.rows.start));
    }
    chains
}

/// The heads of a work item.
#[derive(Clone, Copy)]
struct Heads {
    kv: usize,
    /// First query head.
    first: usize,
    count: usize,
}

/// The largest sizes among the blocks of a call.
#[derive(Clone, Copy)]
struct Room {
    /// Columns of a chunk.
    columns: usize,
    /// Columns of all chunks of a block.
    all_columns: usize,
    keys: usize,
    dim_qk: usize,
    dim_v: usize,
}

impl Room {
    fn new(shapes: &Shapes, heads: usize, tiles: &[Tile]) -> Self {
        let mut room = Self {
            columns: 0,
            all_columns: 0,
            keys: 0,
            dim_qk: shapes.dim_qk,
            dim_v: shapes.dim_v,
        };
        for tile in tiles {
            room.keys = room
                .keys
                .max(Gather::new(tile.kv).keys().min(KEYS).next_multiple_of(FEW));
            // A band may leave any smaller number of rows to a block.
            for rows in 1..=tile.q.len().min(ROWS) {
                let chunk = Chunks::new(rows, heads);
                room.columns = room.columns.max(chunk.stride);
                room.all_columns = room.all_columns.max(chunk.stride * chunk.count);
            }
        }
        room
    }

    /// Lengths of: transposed queries, acc, max, sum, rescale, mask (two parts), scores, K, V.
    fn lens(&self) -> [usize; 10] {
        let Self {
            columns,
            all_columns,
            keys,
            dim_qk,
            dim_v,
        } = *self;
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

/// How the (head, row) pairs of a block become columns: chunks of whole heads.
#[derive(Clone, Copy)]
struct Chunks {
    /// Heads of a chunk; the last may have fewer.
    heads: usize,
    /// Columns of a chunk, rounded up.
    stride: usize,
    count: usize,
}

impl Chunks {
    fn new(rows: usize, heads: usize) -> Self {
        let per_chunk = (COLUMNS / rows).clamp(1, heads);
        Self {
            heads: per_chunk,
            stride: (per_chunk * rows).next_multiple_of(LANES),
            count: heads.div_ceil(per_chunk),
        }
    }
}

/// What all work items of a call share.
struct Call<'a> {
    q: &'a View<'a>,
    k: &'a View<'a>,
    v: &'a View<'a>,
    scale: f32,
    shapes: Shapes,
    acc: Shared<'a>,
    max: Shared<'a>,
    sum: Shared<'a>,
    arch: Arch,
}

impl Call<'_> {
    /// Attends the rows of one block, for the heads of one item.
    #[allow(clippy::too_many_arguments)] // One work item is this many coordinates.
    fn block(
        &self,
        scratch: &mut Scratch,
        room: &Room,
        b: usize,
        heads: Heads,
        tile: &Tile,
        gather: &Gather,
        rows: &Range<usize>,
    ) {
        let keys = gather.keys() as i64;
        let rows = seeing_rows(tile.band, rows.start as i64..rows.end as i64, 0..keys);
        if rows.is_empty() {
            return;
        }
        let count = (rows.end - rows.start) as usize;
        let first_row = tile.q.start + rows.start as usize;
        let chunks = Chunks::new(count, heads.count);
        let (dim_qk, dim_v) = (self.shapes.dim_qk, self.shapes.dim_v);
        let stride = chunks.stride;
        let [
            queries,
            acc,
            max,
            sum,
            rescale,
            lo,
            len,
            scores,
            k_packed,
            v_packed,
        ] = scratch.parts(room.lens());
        let (lo, len) = (bytemuck::cast_slice_mut(lo), bytemuck::cast_slice_mut(len));

        for chunk in 0..chunks.count {
            let mut column = 0;
            let queries = &mut queries[chunk * stride * dim_qk..(chunk + 1) * stride * dim_qk];
            for head in chunk_heads(heads, chunks, chunk) {
                for s in first_row..first_row + count {
                    let row = &mut scores[column * dim_qk..(column + 1) * dim_qk];
                    pack::row(self.q, [b, s, head], row);
                    column += 1;
                }
            }
            scores[column * dim_qk..stride * dim_qk].fill(0.0);
            pack::transpose(&scores[..stride * dim_qk], queries, stride, dim_qk);
        }
        self.load(b, heads, chunks, first_row, count, acc, max, sum);

        let span = seen_keys(tile.band, rows.clone(), 0..keys);
        let mut from = span.start;
        while from < span.end {
            let next = (from as usize / KEYS + 1) * KEYS;
            let to = span.end.min(next as i64);
            let n = (to - from) as usize;
            let piece = self.piece(gather, from as usize..to as usize);
            let (k, k_stride) = self.operand(
                self.k,
                b,
                heads.kv,
                &piece,
                n,
                gather,
                from as usize,
                k_packed,
            );
            let (v, v_stride) = self.operand(
                self.v,
                b,
                heads.kv,
                &piece,
                n,
                gather,
                from as usize,
                v_packed,
            );
            // What is packed has zero rows up to this number.
            let padded = if piece.is_some() {
                n
            } else {
                n.next_multiple_of(FEW)
            };

            let full = sees_all(tile.band, rows.clone(), from..to);
            if !full {
                for (row, t) in rows.clone().enumerate() {
                    let visible = tile.band.visible(t, keys);
                    let start = visible.start.clamp(from, to);
                    lo[row] = (start - from) as u32;
                    len[row] = (visible.end.clamp(start, to) - start) as u32;
                }
                for head in 1..chunks.heads {
                    lo.copy_within(..count, head * count);
                    len.copy_within(..count, head * count);
                }
                lo[chunks.heads * count..stride].fill(0);
                len[chunks.heads * count..stride].fill(n as u32);
            }

            for chunk in 0..chunks.count {
                let columns = chunk * stride..(chunk + 1) * stride;
                let scores = &mut scores[..padded * stride];
                let queries = &queries[columns.start * dim_qk..columns.end * dim_qk];
                gemm(
                    (stride, padded, dim_qk),
                    scores,
                    stride,
                    false,
                    Mat {
                        data: queries,
                        rs: 1,
                        cs: stride,
                    },
                    Mat {
                        data: k,
                        rs: 1,
                        cs: k_stride,
                    },
                    self.scale,
                );
                scores[n * stride..].fill(0.0);
                self.arch.dispatch(softmax::Forward {
                    scores: &mut *scores,
                    keys: n,
                    columns: stride,
                    mask: (!full).then_some(softmax::Mask {
                        lo: &lo[..stride],
                        len: &len[..stride],
                    }),
                    max: &mut max[columns.clone()],
                    sum: &mut sum[columns.clone()],
                    rescale: &mut rescale[..stride],
                });
                let acc = &mut acc[columns.start * dim_v..columns.end * dim_v];
                let used = chunk_heads(heads, chunks, chunk).len() * count;
                if dim_v > 0 {
                    for (acc, &factor) in acc.chunks_exact_mut(dim_v).zip(&rescale[..used]) {
                        if factor != 1.0 {
                            acc.iter_mut().for_each(|x| *x *= factor);
                        }
                    }
                }
                gemm(
                    (dim_v, used.max(FEW), padded),
                    acc,
                    dim_v,
                    true,
                    Mat {
                        data: v,
                        rs: 1,
                        cs: v_stride,
                    },
                    Mat {
                        data: scores,
                        rs: stride,
                        cs: 1,
                    },
                    1.0,
                );
            }
            from = to;
        }
        self.store(b, heads, chunks, first_row, count, acc, max, sum);
    }

    /// The one row range that holds `keys`, where both K and V can be used as they lie.
    fn piece(&self, gather: &Gather, keys: Range<usize>) -> Option<Range<usize>> {
        let n = keys.len();
        let mut pieces = gather.pieces(keys);
        let first = pieces.next()?;
        let usable = n >= SMALL
            && first.len() == n
            && pack::in_place(self.k, [0, 0, 0], 1).is_some()
            && pack::in_place(self.v, [0, 0, 0], 1).is_some();
        usable.then_some(first)
    }

    /// The rows of a block of keys and their stride: as they lie, or packed.
    #[allow(clippy::too_many_arguments)] // As `block`.
    fn operand<'s>(
        &'s self,
        view: &'s View,
        b: usize,
        head: usize,
        piece: &Option<Range<usize>>,
        n: usize,
        gather: &Gather,
        from: usize,
        packed: &'s mut [f32],
    ) -> (&'s [f32], usize) {
        let dim = view.shape()[3];
        if let Some((rows, stride)) = piece
            .as_ref()
            .and_then(|piece| pack::in_place(view, [b, piece.start, head], n))
        {
            return (rows, stride);
        }
        let packed = &mut packed[..n.next_multiple_of(FEW) * dim];
        pack::rows(view, (b, head), gather.pieces(from..from + n), packed);
        (packed, dim)
    }

    /// Copies the carried state of a block's columns into scratch; columns of padding get the identity.
    #[allow(clippy::too_many_arguments)] // As `block`.
    fn load(
        &self,
        b: usize,
        heads: Heads,
        chunks: Chunks,
        first_row: usize,
        count: usize,
        acc: &mut [f32],
        max: &mut [f32],
        sum: &mut [f32],
    ) {
        let dim = self.shapes.dim_v;
        for chunk in 0..chunks.count {
            let mut column = chunk * chunks.stride;
            for head in chunk_heads(heads, chunks, chunk) {
                let at = (b * self.shapes.q_heads + head) * self.shapes.q_rows + first_row;
                let to = column..column + count;
                // SAFETY: the work item owns these rows of these heads (see `chains`).
                let (from_acc, from_max, from_sum) = unsafe {
                    (
                        self.acc.slice(at * dim..(at + count) * dim),
                        self.max.slice(at..at + count),
                        self.sum.slice(at..at + count),
                    )
                };
                acc[to.start * dim..to.end * dim].copy_from_slice(from_acc);
                max[to.clone()].copy_from_slice(from_max);
                sum[to].copy_from_slice(from_sum);
                column += count;
            }
            let padding = column..(chunk + 1) * chunks.stride;
            acc[padding.start * dim..padding.end * dim].fill(0.0);
            max[padding.clone()].fill(f32::NEG_INFINITY);
            sum[padding].fill(0.0);
        }
    }

    /// The inverse of [`Call::load`].
    #[allow(clippy::too_many_arguments)] // As `block`.
    fn store(
        &self,
        b: usize,
        heads: Heads,
        chunks: Chunks,
        first_row: usize,
        count: usize,
        acc: &[f32],
        max: &[f32],
        sum: &[f32],
    ) {
        let dim = self.shapes.dim_v;
        for chunk in 0..chunks.count {
            let mut column = chunk * chunks.stride;
            for head in chunk_heads(heads, chunks, chunk) {
                let at = (b * self.shapes.q_heads + head) * self.shapes.q_rows + first_row;
                let from = column..column + count;
                // SAFETY: the work item owns these rows of these heads (see `chains`).
                let (to_acc, to_max, to_sum) = unsafe {
                    (
                        self.acc.slice(at * dim..(at + count) * dim),
                        self.max.slice(at..at + count),
                        self.sum.slice(at..at + count),
                    )
                };
                to_acc.copy_from_slice(&acc[from.start * dim..from.end * dim]);
                to_max.copy_from_slice(&max[from.clone()]);
                to_sum.copy_from_slice(&sum[from]);
                column += count;
            }
        }
    }
}

/// The query heads of a chunk.
fn chunk_heads(heads: Heads, chunks: Chunks, chunk: usize) -> Range<usize> {
    let first = chunk * chunks.heads;
    heads.first + first..heads.first + heads.count.min(first + chunks.heads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_plan::{Band, Edge};

    #[test]
    fn chains_own_their_rows_and_keep_tile_order() {
        let band = Band {
            q: 0..1000,
            lo: Edge::Fixed(0),
            hi: Edge::Fixed(1),
        };
        let tile = |q| Tile {
            batch: 0..1,
            q,
            kv: &[],
            band: &band,
        };
        let tiles = [
            tile(0..300),
            tile(100..130),
            tile(0..300),
            tile(300..301),
            tile(5..5),
        ];
        let chains = chains(&tiles);
        let rows = |chain: &[Block]| -> Vec<(usize, Range<usize>)> {
            chain
                .iter()
                .map(|block| (block.tile, block.rows.clone()))
                .collect()
        };
        assert_eq!(chains.len(), 3);
        assert_eq!(
            rows(&chains[0]),
            [
                (0, 0..128),
                (0, 128..256),
                (1, 0..30),
                (2, 0..128),
                (2, 128..256)
            ]
        );
        assert_eq!(rows(&chains[1]), [(0, 256..300), (2, 256..300)]);
        assert_eq!(rows(&chains[2]), [(3, 0..1)]);
    }
}

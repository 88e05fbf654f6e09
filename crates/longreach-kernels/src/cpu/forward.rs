//! The forward: query blocks in parallel, each through its tiles in order.

mod block;
mod chains;
mod columns;
mod operands;

use pulp::Arch;

use super::columns::heads_per_chunk;
use super::memory::{Scratch, Shared};
use super::{KEYS, ROWS};
use crate::context::Context;
use crate::error::Error;
use crate::shapes::Shapes;
use crate::state::State;
use crate::tensor::View;
use crate::tile::{Gather, Tile};
use block::Call;
use chains::chains;
use columns::{Heads, Room};

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
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    state.check([shapes.batches, shapes.q_rows, shapes.q_heads, shapes.dim_v])?;
    shapes.check_tiles(tiles)?;
    if shapes.q_heads == 0 {
        return Ok(());
    }

    let gathers: Vec<Gather> = tiles.iter().map(|tile| Gather::new(tile.kv)).collect();
    let chains = chains(tiles);
    let heads = heads_per_item(&shapes, tiles, chains.len(), cx.threads());
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
        tick: cx.tick,
    };
    let splits = shapes.group.div_ceil(heads);
    let per_batch = shapes.kv_heads * splits;
    let per_chain = shapes.batches * per_batch;
    cx.for_each(
        chains.len() * per_chain,
        || Scratch::new(room.lens()),
        |scratch, item| {
            // Later rows of a causal mask see more keys: the heavy items go first.
            let chain = &chains[chains.len() - 1 - item / per_chain];
            let batch = item % per_chain / per_batch;
            let (kv_head, split) = (item % per_batch / splits, item % splits);
            let heads = Heads {
                kv: kv_head,
                first: kv_head * shapes.group + split * heads,
                count: heads.min(shapes.group - split * heads),
            };
            for block in chain {
                let tile = &tiles[block.tile];
                if tile.batch.contains(&batch) {
                    let gather = &gathers[block.tile];
                    call.block(scratch, &room, batch, heads, tile, gather, &block.rows);
                }
            }
        },
    );
    Ok(())
}

/// Bytes of scratch that a thread takes at most.
pub(super) fn scratch(shapes: &Shapes) -> usize {
    Scratch::bytes(Room::of(shapes, shapes.group.min(HEADS), ROWS, KEYS).lens())
}

/// Heads of a group in one item: as many as share a K/V block well, fewer where threads would idle, but
/// never less than fill a chunk of columns. Columns do not mix, so this changes no bit.
fn heads_per_item(shapes: &Shapes, tiles: &[Tile], chains: usize, threads: usize) -> usize {
    let mut heads = shapes.group.min(HEADS);
    let rows = tiles.iter().map(|tile| tile.q.len().clamp(1, ROWS)).min();
    let least = heads_per_chunk(rows.unwrap_or(1), heads);
    let groups = chains * shapes.batches * shapes.kv_heads;
    while threads > 1 && heads > least && groups * shapes.group.div_ceil(heads) < 4 * threads {
        heads = heads.div_ceil(2).max(least);
    }
    heads
}

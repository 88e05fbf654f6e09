//! The backward: blocks of keys in parallel, five products for each (keys, rows) block.
//!
//! A work item owns the dK and dV of one block of keys. dQ is shared by all blocks of keys of a row, which
//! add in ascending order: each waits for its turn. Blocks of rows go from last to first, so that under
//! a causal mask the next block of keys follows one step behind instead of waiting for the whole of its
//! predecessor.

mod block;
mod room;
mod turns;
mod waves;

use super::memory::{Scratch, Shared};
use super::{KEYS, ROWS};
use crate::context::Context;
use crate::error::Error;
use crate::shapes::Shapes;
use crate::state::expect_len;
use crate::tensor::View;
use crate::tile::Tile;
use block::Call;
use room::Room;
use turns::Turns;
use waves::{Wave, waves};

/// Adds the gradients of `tiles`, in order, into float32 `dq` `[B, Sq, Hq, Dk]`, `dk` `[B, Skv, Hkv, Dk]`
/// and `dv` `[B, Skv, Hkv, Dv]`.
///
/// `dout` is `[B, Sq, Hq, Dv]`; `lse` and `delta` (see [`delta`](super::delta())) are `[B, Hq, Sq]` and those of
/// the *whole* row, over all tiles of all calls. Rows with lse = -inf contribute exactly nothing. Fails,
/// before anything is written, when shapes do not fit, when a tile reaches beyond the views or lists a
/// key row twice.
#[allow(clippy::too_many_arguments)] // The operation has this many operands.
pub fn backward(
    cx: &Context,
    q: &View,
    k: &View,
    v: &View,
    dout: &View,
    lse: &[f32],
    delta: &[f32],
    scale: f32,
    tiles: &[Tile],
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
) -> Result<(), Error> {
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    let Shapes { batches, q_rows, kv_rows, q_heads, kv_heads, dim_qk, dim_v, .. } = shapes;
    if dout.shape() != [batches, q_rows, q_heads, dim_v] {
        let needs = format!("q and v make it {:?}", [batches, q_rows, q_heads, dim_v]);
        return Err(Error::Shape { what: "dout", given: dout.shape(), needs });
    }
    expect_len("lse", lse.len(), &[batches, q_heads, q_rows])?;
    expect_len("delta", delta.len(), &[batches, q_heads, q_rows])?;
    expect_len("dq", dq.len(), &[batches, q_rows, q_heads, dim_qk])?;
    expect_len("dk", dk.len(), &[batches, kv_rows, kv_heads, dim_qk])?;
    expect_len("dv", dv.len(), &[batches, kv_rows, kv_heads, dim_v])?;
    shapes.check_tiles(tiles)?;
    if q_heads == 0 {
        return Ok(());
    }

    let room = Room::new(&shapes, tiles);
    let call = Call {
        q,
        k,
        v,
        dout,
        lse,
        delta,
        scale,
        shapes,
        dq: Shared::new(dq),
        dk: Shared::new(dk),
        dv: Shared::new(dv),
        arch: pulp::Arch::new(),
        tick: cx.tick,
    };
    for wave in waves(tiles) {
        let Wave { items, turns } = wave.items(&shapes);
        let turns = Turns::new(&turns);
        cx.for_each(
            items.len(),
            || Scratch::new(room.lens()),
            |scratch, item| {
                turns.guarded(|| call.item(scratch, &room, &items[item], &turns));
                (cx.tick)();
            },
        );
    }
    Ok(())
}

/// Bytes of scratch that a thread takes at most.
pub(super) fn scratch(shapes: &Shapes) -> usize {
    Scratch::bytes(Room::of(shapes, ROWS, KEYS).lens())
}

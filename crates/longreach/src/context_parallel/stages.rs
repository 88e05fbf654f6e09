//! The order of a call's stages on the host: gets are queued ahead of the tiles that need them.

use super::Engine;
use super::call::{Call, Direction};
use super::exchange::{Exchange, Rows};
use super::room::{Room, UNDER_WAY};
use crate::error::Error;
use longreach_device::{Kind, Label, Loan, Pending, Stream};
use longreach_kernels::{flops_backward, flops_forward};
use longreach_plan::Tile;
use std::collections::VecDeque;
use std::ops::Range;

/// Calls `compute` for each stage in order, stage 0 with this PE's `own` rows, the others with what was fetched;
/// it queues the stage's work on the compute stream. Gets of later stages are queued ahead.
pub(super) fn each_stage(
    engine: &Engine,
    room: &mut Room,
    call: &Call,
    exchange: &mut Exchange,
    own: &Pending<Rows>,
    mut compute: impl FnMut(&mut Room, usize, &Loan<'_, Rows>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut fetched: VecDeque<Pending<Rows>> = VecDeque::new();
    for stage in 1..=call.fetched().min(UNDER_WAY) {
        fetched.push_back(exchange.fetch(stage, room.rows(&engine.place, call)?)?);
    }
    let loan = own.on(call.label(Kind::Wait, 0), &engine.compute);
    begin(engine, call, 0)?;
    compute(room, 0, &loan)?;
    loan.give_back(&engine.compute)?;
    let mut stage = 0;
    while let Some(pending) = fetched.pop_front() {
        stage += 1;
        let loan = pending.on(call.label(Kind::Wait, stage), &engine.compute);
        begin(engine, call, stage)?;
        compute(room, stage, &loan)?;
        loan.give_back(&engine.compute)?;
        let slot = pending.reuse()?;
        let next = stage + 1 + fetched.len();
        if next <= call.fetched() {
            fetched.push_back(exchange.fetch(next, slot)?);
        } else {
            room.put_rows(slot);
        }
    }
    Ok(())
}

/// Queues what stands ahead of a stage's tiles: whoever asks what this PE does is told, and the caller's hook is called.
fn begin(engine: &Engine, call: &Call, stage: usize) -> Result<(), Error> {
    let (team, hook) = (engine.team.clone(), engine.options.before_stage.clone());
    let (direction, operation) = (call.direction, call.operation(call.direction.name(), stage));
    engine.compute.launch(call.label(Kind::Merge, stage).of_host(), (), move |()| {
        team.begins(operation);
        match hook {
            None => Ok(()),
            Some(hook) => (*hook.0)(direction, stage).map_err(|reason| team.fail(&reason).into_fault()),
        }
    })?;
    Ok(())
}

impl Engine {
    /// Queues the wait for this PE's turn at the device, where PEs take turns.
    pub(super) fn wait_for_turn(&self, stream: &Stream, call: &Call) -> Result<(), Error> {
        let Some(turns) = self.options.turns.clone() else { return Ok(()) };
        let (turn, team) = (self.turn(call), self.team.clone());
        stream.launch(call.label(Kind::Turn, 0).of_host(), (), move |()| {
            turns.wait(turn, || team.check().is_err());
            team.check().map_err(|error| error.into_fault())
        })?;
        Ok(())
    }

    /// Queues the end of this PE's turn behind all that the compute stream has been given.
    pub(super) fn end_turn(&self, call: &Call) -> Result<(), Error> {
        let Some(turns) = self.options.turns.clone() else { return Ok(()) };
        let (turn, cuda) = (self.turn(call), self.compute.cuda().cloned());
        self.compute.launch(call.label(Kind::Turn, call.fetched()).of_host(), (), move |()| {
            let done = cuda.map_or(Ok(()), |cuda| cuda.synchronize());
            turns.end(turn);
            done.map_err(|error| error.into_fault())
        })?;
        Ok(())
    }

    fn turn(&self, call: &Call) -> u64 {
        (call.epoch - 1) * self.team.size() as u64 + call.me as u64
    }
}

/// Tiles that one launch computes, with what they cost.
pub(super) struct Batch {
    pub(super) tiles: Range<usize>,
    pub(super) label: Label,
}

/// Cuts the tiles of a stage into launches of at most so many operations, in order.
pub(super) fn batches(call: &Call, stage: usize, most: u64) -> Vec<Batch> {
    let dims = &call.dims;
    let (heads, dk, dv) = (dims.q_heads as u64, dims.head_dim as u64, dims.value_dim as u64);
    let mut batches: Vec<Batch> = Vec::new();
    for (i, tile) in call.stage(stage).tiles.iter().enumerate() {
        let pairs = tile.visible_pairs();
        let flops = match call.direction {
            Direction::Forward => flops_forward(pairs, heads, dk, dv),
            Direction::Backward => flops_backward(pairs, heads, dk, dv),
        };
        match batches.last_mut() {
            Some(batch) if batch.label.flops.saturating_add(flops) <= most => {
                batch.tiles.end = i + 1;
                batch.label.flops += flops;
            }
            _ => batches.push(Batch { tiles: i..i + 1, label: call.label(Kind::Tile, stage).flops(flops) }),
        }
    }
    batches
}

/// The plan's tiles as kernels take them.
pub(super) fn kernel_tiles(tiles: &[Tile]) -> Vec<longreach_kernels::Tile<'_>> {
    tiles
        .iter()
        .map(|tile| longreach_kernels::Tile {
            batch: tile.batch.clone(),
            q: tile.q.clone(),
            kv: &tile.kv,
            band: &tile.band,
        })
        .collect()
}

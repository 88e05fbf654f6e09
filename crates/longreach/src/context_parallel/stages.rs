//! The order of a call's stages on the host: gets are queued ahead of the tiles that need them.

use super::Engine;
use super::call::Call;
use super::exchange::{Exchange, Rows};
use crate::error::Error;
use crate::tensor::Elements;
use longreach_device::{Kind, Loan, Pending, Slot};
use longreach_kernels::View;
use std::collections::VecDeque;

/// Fetched stages that may be under way while another one computes.
const PREFETCH: usize = 2;

const FETCHED: &str = "fetched rows";

/// Slots for the fetched stages, as many as can be in use at a time.
fn slots(call: &Call) -> Result<Vec<Slot<Rows>>, Error> {
    let stages = &call.pe_plan().stages[1..];
    let rows = stages.iter().map(|stage| stage.rows).max().unwrap_or(0) * call.dims.batch;
    (0..PREFETCH.min(stages.len()))
        .map(|_| {
            let k = Elements::zeros(FETCHED, call.dims.dtype, rows * call.dims.k_row())?;
            let v = Elements::zeros(FETCHED, call.dims.dtype, rows * call.dims.v_row())?;
            Ok(Slot::new(FETCHED, Rows { k, v }))
        })
        .collect()
}

/// Calls `compute` for each stage in order, stage 0 with this PE's `own` rows, the others with what was fetched;
/// it queues the stage's work on the compute stream. Gets of later stages are queued ahead.
pub(super) fn each_stage(
    engine: &Engine,
    call: &Call,
    exchange: &mut Exchange,
    own: &Pending<Rows>,
    mut compute: impl FnMut(usize, &Loan<'_, Rows>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut fetched: VecDeque<Pending<Rows>> = VecDeque::new();
    for slot in slots(call)? {
        fetched.push_back(exchange.fetch(fetched.len() + 1, slot)?);
    }
    let loan = own.on(call.label(Kind::Wait, 0), &engine.compute);
    begin(engine, call, 0)?;
    compute(0, &loan)?;
    loan.give_back(&engine.compute)?;
    let mut stage = 0;
    while let Some(pending) = fetched.pop_front() {
        stage += 1;
        let loan = pending.on(call.label(Kind::Wait, stage), &engine.compute);
        begin(engine, call, stage)?;
        compute(stage, &loan)?;
        loan.give_back(&engine.compute)?;
        let slot = pending.reuse()?;
        let next = stage + 1 + fetched.len();
        if next <= call.fetched() {
            fetched.push_back(exchange.fetch(next, slot)?);
        }
    }
    Ok(())
}

/// Queues what stands ahead of a stage's tiles: whoever asks what this PE does is told, and the caller's hook is called.
fn begin(engine: &Engine, call: &Call, stage: usize) -> Result<(), Error> {
    let (team, hook) = (engine.team.clone(), engine.options.before_stage.clone());
    let (direction, operation) = (call.direction, call.operation(call.direction.name(), stage));
    engine.compute.launch(call.label(Kind::Merge, stage), (), move |()| {
        team.begins(operation);
        match hook {
            None => Ok(()),
            Some(hook) => (*hook.0)(direction, stage).map_err(|reason| team.fail(&reason).into_fault()),
        }
    })?;
    Ok(())
}

/// Views of a stage's K `[batch, rows, kv heads, head_dim]` and V `[batch, rows, kv heads, value_dim]`.
pub(super) fn views<'a>(call: &Call, stage: usize, rows: &'a Rows) -> Result<(View<'a>, View<'a>), Error> {
    let dims = &call.dims;
    let count = match stage {
        0 => call.pe_plan().kv_rows,
        _ => call.stage(stage).rows,
    };
    let view = |data: &'a Elements, dim| {
        View::contiguous(data.data(), [dims.batch, count, dims.kv_heads, dim])
            .map_err(|error| Error::Input(error.to_string()))
    };
    Ok((view(&rows.k, dims.head_dim)?, view(&rows.v, dims.value_dim)?))
}

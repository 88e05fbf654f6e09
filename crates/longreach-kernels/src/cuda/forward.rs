//! The forward: each call of cuDNN gives a normalised part, which is added into the carried state.

use super::calls::{Call, calls};
use super::context::Context;
use super::cudnn::{self, Binding, Element, Plan, Problem, Rows, Scalar};
use super::memory::{Memory, Room, View};
use super::operand::{self, Operand, element};
use super::rows::Extent;
use super::state::State;
use crate::error::Error;
use crate::shapes::Shapes;
use crate::tile::Tile;
use std::sync::Arc;

/// One call, with everything's place.
struct Job {
    call: Call,
    problem: Problem,
    planned: Arc<(cudnn::Forward, Plan)>,
    operands: [Operand; 3],
    /// Which half of the rows' memory in the state the part goes to; none for scratch.
    half: Option<usize>,
    o: u64,
    lse: u64,
    workspace: u64,
}

/// Queues attention of `tiles`, in order, into `state`: `q` `[B, Sq, Hq, Dk]`, `k` `[B, Skv, Hkv, Dk]`, `v`
/// `[B, Skv, Hkv, Dv]`, `Hq` a multiple of `Hkv`.
///
/// Rows of K and V that no tile lists, or that the band hides from every row of a tile, are not read. `scratch` has the
/// bytes that [`forward_scratch`] says. Fails, before anything is queued, when shapes do not fit, when a tile reaches
/// beyond the views or lists a key row twice, and for what cuDNN does not take.
#[allow(clippy::too_many_arguments)] // The operation has this many operands.
pub fn forward(
    cx: &mut Context,
    q: &View,
    k: &View,
    v: &View,
    scale: f32,
    tiles: &[Tile],
    scratch: Memory,
    state: &mut State,
) -> Result<(), Error> {
    cx.ready()?;
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    let shape = [shapes.batches, shapes.q_rows, shapes.q_heads, shapes.dim_v];
    if state.shape != shape {
        let needs = format!("q and v make it {shape:?}");
        return Err(Error::Shape { what: "state", given: state.shape, needs });
    }
    let element = element(&[("q", q), ("k", k), ("v", v)])?;
    if state.element.is_some_and(|held| held != element) {
        return Err(Error::Refused(format!(
            "q of type {} for a state of another type: reset it",
            q.dtype().name()
        )));
    }
    let mut held = state.held.clone();
    let mut needed = 0;
    let mut jobs = Vec::new();
    for call in calls_of(cx, &shapes, tiles)? {
        let half = held.take(&call.batch, &operand::q_heads(&call, shapes.group), &call.q);
        let mut room = Room::new(scratch.address());
        jobs.push(job(cx, &shapes, [q, k, v], call, element, half.map(|half| (half, &*state)), &mut room)?);
        needed = needed.max(room.bytes());
    }
    if needed > scratch.bytes() {
        return Err(Error::Scratch { given: scratch.bytes(), needed });
    }
    (state.held, state.element) = (held, Some(element));
    for job in &jobs {
        // SAFETY: all addresses are within the views, the state and the scratch, whose memory is valid until the work
        // has run, as whoever made a `Memory` promised.
        unsafe { run(cx, &shapes, job, scale, state)? };
    }
    Ok(())
}

/// Bytes of scratch that a [`forward`] over these views and tiles takes. Plans what it has not planned before.
pub fn forward_scratch(
    cx: &mut Context,
    q: &View,
    k: &View,
    v: &View,
    tiles: &[Tile],
) -> Result<usize, Error> {
    cx.ready()?;
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    let element = element(&[("q", q), ("k", k), ("v", v)])?;
    // A part may go to either place, by what the state holds then.
    // SAFETY: nothing is queued with it.
    let nowhere = unsafe { Memory::new(0, 0) };
    let shape = [shapes.batches, shapes.q_rows, shapes.q_heads, shapes.dim_v];
    let state = State { shape, ..State::new(nowhere, nowhere, nowhere, [0; 4])? };
    let mut needed = 0;
    for call in calls_of(cx, &shapes, tiles)? {
        for place in [None, Some((0, &state))] {
            let mut room = Room::new(0);
            job(cx, &shapes, [q, k, v], call.clone(), element, place, &mut room)?;
            needed = needed.max(room.bytes());
        }
    }
    Ok(needed)
}

fn calls_of(cx: &Context, shapes: &Shapes, tiles: &[Tile]) -> Result<Vec<Call>, Error> {
    shapes.check_tiles(tiles)?;
    let Shapes { q_heads, group, dim_qk, dim_v, .. } = *shapes;
    if q_heads == 0 {
        return Ok(Vec::new());
    }
    let need = |rows: usize, keys: usize| {
        // Part, lse and a gathered q; gathered k and v.
        rows * group * (2 * dim_v + 4 + 2 * dim_qk) + keys * 2 * (dim_qk + dim_v)
    };
    calls(tiles, shapes.kv_heads, &need, cx.settings.workspace)
}

/// Places a call in `room`; its part goes to a half of the state's rows, or to the room too.
fn job(
    cx: &mut Context,
    shapes: &Shapes,
    [q, k, v]: [&View; 3],
    call: Call,
    element: Element,
    place: Option<(usize, &State)>,
    room: &mut Room,
) -> Result<Job, Error> {
    let heads = operand::q_heads(&call, shapes.group);
    let (kv, mut problem) = operand::problem(&call, shapes, element, false);
    let rows = std::slice::from_ref(&call.q);
    let operands = [
        Operand::new(q, &call.batch, &heads, rows, room)?,
        Operand::new(k, &call.batch, &call.kv_heads, &kv, room)?,
        Operand::new(v, &call.batch, &call.kv_heads, &kv, room)?,
    ];
    [problem.q, problem.k, problem.v] =
        [&operands[0], &operands[1], &operands[2]].map(|operand| operand.rows);
    let part = [call.batch.len(), heads.len(), call.q.len(), shapes.dim_v];
    // A part lies as the state does, head by head.
    let (len, width, o) = match place {
        None => (call.q.len(), shapes.dim_v, room.take("a part", &part, 2)?),
        Some((half, state)) => {
            let [acc, ..] = state.at(call.batch.start, heads.start, call.q.start);
            (shapes.q_rows, 2 * shapes.dim_v, acc + (half * shapes.dim_v * 2) as u64)
        }
    };
    let all = if place.is_some() { shapes.q_heads } else { heads.len() };
    let [row, head, batch] = [width, len * width, all * len * width].map(|stride| stride as i64);
    problem.o = Rows { batch, row, head };
    problem.d_o = problem.o;
    let lse = room.take("lse of a part", &part[..3], 4)?;
    let planned = cx.forward_plan(&problem)?;
    let workspace = room.take("cuDNN's workspace", &[planned.1.workspace()], 1)?;
    let half = place.map(|(half, _)| half);
    Ok(Job { call, problem, planned, operands, half, o, lse, workspace })
}

/// # Safety
/// All addresses of the job and the state are of memory that is valid until the work has run.
unsafe fn run(cx: &mut Context, shapes: &Shapes, job: &Job, scale: f32, state: &State) -> Result<(), Error> {
    let Job { call, problem, planned, operands, half, o, lse, workspace } = job;
    for operand in operands {
        // SAFETY: the caller's promise.
        unsafe { operand.gather(cx)? };
    }
    let (graph, plan) = &**planned;
    let mut bindings = vec![
        (graph.q, Binding::Memory(operands[0].address)),
        (graph.k, Binding::Memory(operands[1].address)),
        (graph.v, Binding::Memory(operands[2].address)),
        (graph.scale, Binding::Value(Scalar::F32(scale))),
        (graph.o, Binding::Memory(*o)),
        (graph.lse, Binding::Memory(*lse)),
    ];
    bindings.extend(graph.mask.bindings(problem.bound));
    // SAFETY: the caller's promise; sizes are the problem's.
    unsafe { plan.execute(&mut cx.handle, &bindings, *workspace)? };
    let heads = operand::q_heads(call, shapes.group);
    let [acc, max, sum] = state.at(call.batch.start, heads.start, call.q.start);
    let extent = Extent { batches: call.batch.len(), heads: heads.len(), dim: shapes.dim_v };
    let sizes = [call.q.len(), shapes.q_heads, shapes.q_rows];
    // SAFETY: as above; the part's rows are within the state's.
    unsafe {
        match half {
            Some(half) => cx.kernels.hold(*lse, *half == 1, [max, sum], sizes, extent),
            None => cx.kernels.merge(problem.element, [*o, *lse], [acc, max, sum], sizes, extent),
        }
    }
}

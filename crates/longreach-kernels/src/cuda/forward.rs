//! The forward: each call of cuDNN gives a normalised part, which is added into the carried state.

use super::calls::{Call, calls};
use super::context::Context;
use super::cudnn::{self, Binding, Element, Plan, Problem, Rows, Scalar};
use super::kernels::Extent;
use super::memory::{Memory, Room, State, View};
use super::operand::{self, Operand, element};
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
    state: &State,
) -> Result<(), Error> {
    cx.ready()?;
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    state.check([shapes.batches, shapes.q_rows, shapes.q_heads, shapes.dim_v])?;
    let (jobs, needed) = jobs(cx, &shapes, [q, k, v], tiles, scratch.address())?;
    if needed > scratch.bytes() {
        return Err(Error::Scratch { given: scratch.bytes(), needed });
    }
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
    Ok(jobs(cx, &shapes, [q, k, v], tiles, 0)?.1)
}

/// The calls, placed in scratch from `scratch` on, and how many bytes of it they take.
fn jobs(
    cx: &mut Context,
    shapes: &Shapes,
    [q, k, v]: [&View; 3],
    tiles: &[Tile],
    scratch: u64,
) -> Result<(Vec<Job>, usize), Error> {
    shapes.check_tiles(tiles)?;
    let element = element(&[("q", q), ("k", k), ("v", v)])?;
    if shapes.q_heads == 0 {
        return Ok((Vec::new(), 0));
    }
    let Shapes { group, dim_qk, dim_v, .. } = *shapes;
    let need = |rows: usize, keys: usize| {
        // Part, lse and a gathered q; gathered k and v.
        rows * group * (2 * dim_v + 4 + 2 * dim_qk) + keys * 2 * (dim_qk + dim_v)
    };
    let calls = calls(tiles, shapes.kv_heads, &need, cx.settings.workspace)?;
    let mut needed = 0;
    let mut jobs = Vec::with_capacity(calls.len());
    for call in calls {
        let mut room = Room::new(scratch);
        let job = job(cx, shapes, [q, k, v], call, element, &mut room)?;
        needed = needed.max(room.bytes());
        jobs.push(job);
    }
    Ok((jobs, needed))
}

fn job(
    cx: &mut Context,
    shapes: &Shapes,
    [q, k, v]: [&View; 3],
    call: Call,
    element: Element,
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
    // The part lies as the state does, head by head.
    let (len, dim) = (problem.q_len, problem.value_dim);
    problem.o = Rows { batch: problem.q_heads * len * dim, row: dim, head: len * dim };
    problem.d_o = problem.o;
    let part = [call.batch.len(), heads.len(), call.q.len()];
    let lse = room.take("lse of a part", &part, 4)?;
    let o = room.take("a part", &[part[0], part[1], part[2], shapes.dim_v], 2)?;
    let planned = cx.forward_plan(&problem)?;
    let workspace = room.take("cuDNN's workspace", &[planned.1.workspace()], 1)?;
    Ok(Job { call, problem, planned, operands, o, lse, workspace })
}

/// # Safety
/// All addresses of the job and the state are of memory that is valid until the work has run.
unsafe fn run(cx: &mut Context, shapes: &Shapes, job: &Job, scale: f32, state: &State) -> Result<(), Error> {
    let Job { call, problem, planned, operands, o, lse, workspace } = job;
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
    let first = (call.batch.start * shapes.q_heads + heads.start) * shapes.q_rows + call.q.start;
    let at = |memory: Memory, width: usize| memory.address() + (first * width * 4) as u64;
    let state = [at(state.acc, shapes.dim_v), at(state.max, 1), at(state.sum, 1)];
    let extent = Extent { batches: call.batch.len(), heads: heads.len(), dim: shapes.dim_v };
    let sizes = [call.q.len(), shapes.q_heads, shapes.q_rows];
    // SAFETY: as above; the part's rows are within the state's.
    unsafe { cx.kernels.merge(problem.element, [*o, *lse], state, sizes, extent) }
}

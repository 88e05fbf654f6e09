//! The backward: each call of cuDNN gives its part of the gradients, which is added in float32.

use super::calls::{Call, calls};
use super::context::Context;
use super::cudnn::{self, Binding, Element, Plan, Problem, Scalar};
use super::memory::{Memory, Room, View};
use super::operand::{self, Operand, element};
use super::rows::{Extent, Piece, gathered};
use super::sum::Sum;
use crate::error::Error;
use crate::shapes::Shapes;
use crate::tile::Tile;
use std::sync::Arc;

/// The views that a backward reads.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    q: &'a View,
    k: &'a View,
    v: &'a View,
    out: &'a View,
    dout: &'a View,
}

/// One call, with everything's place.
struct Job {
    call: Call,
    problem: Problem,
    planned: Arc<(cudnn::Backward, Plan)>,
    /// q, k, v, out, dout.
    operands: [Operand; 5],
    /// A copy of the rows' lse, where they are not all rows.
    lse: Option<u64>,
    row_sums: u64,
    dq_sum: Option<u64>,
    /// Parts of dq, dk, dv.
    parts: [u64; 3],
    workspace: u64,
}

/// Queues the gradients of `tiles`, in order, added into `dq` `[B, Sq, Hq, Dk]`, `dk` `[B, Skv, Hkv, Dk]` and `dv`
/// `[B, Skv, Hkv, Dv]`.
///
/// `out` and `dout` are `[B, Sq, Hq, Dv]`, of q's type; `out` and `lse`, float32 `[B, Hq, Sq]`, are those of the
/// *whole* row, over all tiles of all calls. `scratch` has the bytes that [`backward_scratch`] says. Fails as
/// [`forward`](super::forward()) does.
#[allow(clippy::too_many_arguments)] // The operation has this many operands.
pub fn backward(
    cx: &mut Context,
    q: &View,
    k: &View,
    v: &View,
    out: &View,
    dout: &View,
    lse: Memory,
    scale: f32,
    tiles: &[Tile],
    scratch: Memory,
    dq: &mut Sum,
    dk: &mut Sum,
    dv: &mut Sum,
) -> Result<(), Error> {
    cx.ready()?;
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    let Shapes { batches, q_rows, kv_rows, q_heads, kv_heads, dim_qk, dim_v, .. } = shapes;
    lse.check_f32("lse", &[batches, q_heads, q_rows])?;
    dq.check("dq", [batches, q_rows, q_heads, dim_qk])?;
    dk.check("dk", [batches, kv_rows, kv_heads, dim_qk])?;
    dv.check("dv", [batches, kv_rows, kv_heads, dim_v])?;
    let inputs = Inputs { q, k, v, out, dout };
    let (jobs, needed) = jobs(cx, &shapes, inputs, tiles, scratch.address())?;
    if needed > scratch.bytes() {
        return Err(Error::Scratch { given: scratch.bytes(), needed });
    }
    for job in &jobs {
        // SAFETY: all addresses are within the views, the gradients and the scratch, whose memory is valid until the
        // work has run, as whoever made a `Memory` promised.
        unsafe {
            run(cx, &shapes, job, scale, lse)?;
            add(cx, &shapes, job, [&mut *dq, &mut *dk, &mut *dv])?;
        }
    }
    Ok(())
}

/// Bytes of scratch that a [`backward`] over these views and tiles takes. Plans what it has not planned before.
pub fn backward_scratch(
    cx: &mut Context,
    q: &View,
    k: &View,
    v: &View,
    out: &View,
    dout: &View,
    tiles: &[Tile],
) -> Result<usize, Error> {
    cx.ready()?;
    let shapes = Shapes::new(q.shape(), k.shape(), v.shape())?;
    Ok(jobs(cx, &shapes, Inputs { q, k, v, out, dout }, tiles, 0)?.1)
}

/// The calls, placed in scratch from `scratch` on, and how many bytes of it they take.
fn jobs(
    cx: &mut Context,
    shapes: &Shapes,
    inputs: Inputs,
    tiles: &[Tile],
    scratch: u64,
) -> Result<(Vec<Job>, usize), Error> {
    let Shapes { batches, q_rows, q_heads, group, dim_qk, dim_v, .. } = *shapes;
    for (what, view) in [("out", inputs.out), ("dout", inputs.dout)] {
        if view.shape() != [batches, q_rows, q_heads, dim_v] {
            let needs = format!("q and v make it {:?}", [batches, q_rows, q_heads, dim_v]);
            return Err(Error::Shape { what, given: view.shape(), needs });
        }
    }
    shapes.check_tiles(tiles)?;
    let Inputs { q, k, v, out, dout } = inputs;
    let element = element(&[("q", q), ("k", k), ("v", v), ("out", out), ("dout", dout)])?;
    if q_heads == 0 {
        return Ok((Vec::new(), 0));
    }
    let deterministic = cx.settings.deterministic;
    let need = |rows: usize, keys: usize| {
        // Gathered q, out and dout; dq's part, and its sum; lse and row sums.
        let row = 2 * (dim_qk + 2 * dim_v) + (2 + 4) * dim_qk + 8;
        // Gathered k and v, parts of dk and dv, and those of each query head.
        let key = 2 * (dim_qk + dim_v) * (2 + if group > 1 { group } else { 0 });
        let scores =
            if deterministic { 2 * rows.next_multiple_of(64) * keys.next_multiple_of(128) } else { 0 };
        group * (rows * row + scores) + keys * key
    };
    let calls = calls(tiles, shapes.kv_heads, &need, cx.settings.workspace)?;
    let mut needed = 0;
    let mut jobs = Vec::with_capacity(calls.len());
    for call in calls {
        let mut room = Room::new(scratch);
        let job = job(cx, shapes, inputs, call, element, &mut room)?;
        needed = needed.max(room.bytes());
        jobs.push(job);
    }
    Ok((jobs, needed))
}

fn job(
    cx: &mut Context,
    shapes: &Shapes,
    inputs: Inputs,
    call: Call,
    element: Element,
    room: &mut Room,
) -> Result<Job, Error> {
    let heads = operand::q_heads(&call, shapes.group);
    let (kv, mut problem) = operand::problem(&call, shapes, element, cx.settings.deterministic);
    let rows = std::slice::from_ref(&call.q);
    let operands = [
        Operand::new(inputs.q, &call.batch, &heads, rows, room)?,
        Operand::new(inputs.k, &call.batch, &call.kv_heads, &kv, room)?,
        Operand::new(inputs.v, &call.batch, &call.kv_heads, &kv, room)?,
        Operand::new(inputs.out, &call.batch, &heads, rows, room)?,
        Operand::new(inputs.dout, &call.batch, &heads, rows, room)?,
    ];
    let [q, k, v, o, d_o] = &operands;
    (problem.q, problem.k, problem.v, problem.o, problem.d_o) = (q.rows, k.rows, v.rows, o.rows, d_o.rows);
    let numbers = [call.batch.len(), heads.len(), call.q.len()];
    // cuDNN reads lse contiguous only.
    let whole = call.q == (0..shapes.q_rows);
    let lse = if whole { None } else { Some(room.take("lse of the rows", &numbers, 4)?) };
    let row_sums = room.take("row sums", &numbers, 4)?;
    let planned = cx.backward_plan(&problem)?;
    let dq = [numbers[0], numbers[1], numbers[2], shapes.dim_qk];
    let dq_sum = planned.0.dq_sum.map(|_| room.take("dq in float32", &dq, 4)).transpose()?;
    let keys = [call.batch.len(), call.kv_heads.len(), problem.kv_len as usize];
    let parts = [
        room.take("a part of dq", &dq, 2)?,
        room.take("a part of dk", &[keys[0], keys[1], keys[2], shapes.dim_qk], 2)?,
        room.take("a part of dv", &[keys[0], keys[1], keys[2], shapes.dim_v], 2)?,
    ];
    let workspace = room.take("cuDNN's workspace", &[planned.1.workspace()], 1)?;
    Ok(Job { call, problem, planned, operands, lse, row_sums, dq_sum, parts, workspace })
}

/// Queues the call.
///
/// # Safety
/// All addresses of the job and lse are of memory that is valid until the work has run.
unsafe fn run(cx: &mut Context, shapes: &Shapes, job: &Job, scale: f32, lse: Memory) -> Result<(), Error> {
    let Job { call, problem, planned, operands, .. } = job;
    for operand in operands {
        // SAFETY: the caller's promise.
        unsafe { operand.gather(cx)? };
    }
    let heads = operand::q_heads(call, shapes.group);
    let first = (call.batch.start * shapes.q_heads + heads.start) * shapes.q_rows + call.q.start;
    let mut lse = lse.address() + (first * 4) as u64;
    if let Some(copy) = job.lse {
        let extent = Extent { batches: call.batch.len(), heads: heads.len(), dim: 1 };
        let sizes = [call.q.len(), shapes.q_heads, shapes.q_rows];
        // SAFETY: the rows are within lse's.
        unsafe { cx.kernels.copy_numbers([lse, copy], sizes, extent)? };
        lse = copy;
    }
    let (graph, plan) = &**planned;
    let [dq, dk, dv] = job.parts;
    let tensors = [graph.q, graph.k, graph.v, graph.o, graph.d_o];
    let addresses = operands.iter().map(|operand| Binding::Memory(operand.address));
    let mut bindings: Vec<_> = tensors.into_iter().zip(addresses).collect();
    bindings.extend([
        (graph.lse, Binding::Memory(lse)),
        (graph.scale, Binding::Value(Scalar::F32(scale))),
        (graph.one, Binding::Value(Scalar::F32(1.0))),
        (graph.row_sums, Binding::Memory(job.row_sums)),
        (graph.dq, Binding::Memory(dq)),
        (graph.dk, Binding::Memory(dk)),
        (graph.dv, Binding::Memory(dv)),
    ]);
    bindings.extend(graph.dq_sum.zip(job.dq_sum).map(|(id, address)| (id, Binding::Memory(address))));
    bindings.extend(graph.mask.bindings(problem.bound));
    // SAFETY: the caller's promise; sizes are the problem's.
    unsafe { plan.execute(&mut cx.handle, &bindings, job.workspace) }
}

/// Queues the addition of the parts into `[dq, dk, dv]`.
///
/// # Safety
/// As for [`run`].
unsafe fn add(cx: &Context, shapes: &Shapes, job: &Job, [dq, dk, dv]: [&mut Sum; 3]) -> Result<(), Error> {
    let Job { call, problem, parts, .. } = job;
    let heads = operand::q_heads(call, shapes.group);
    // Rows of the parts are gathered; a key that cuDNN got twice has its gradient in the first.
    let keys: Vec<Piece> = gathered(&call.kv).into_iter().map(|(row, at, rows)| (at, row, rows)).collect();
    let queries = [(0, call.q.start, call.q.len())];
    let (of_queries, of_keys) = ([&call.batch, &heads], [&call.batch, &call.kv_heads]);
    let (rows, keys_len) = (call.q.len(), problem.kv_len as usize);
    // SAFETY: the caller's promise; the pieces' rows are within the parts.
    unsafe {
        dq.add(cx, problem.element, (parts[0], rows), of_queries, &queries)?;
        dk.add(cx, problem.element, (parts[1], keys_len), of_keys, &keys)?;
        dv.add(cx, problem.element, (parts[2], keys_len), of_keys, &keys)
    }
}

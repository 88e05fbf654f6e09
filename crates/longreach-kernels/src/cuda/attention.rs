//! Attention over tiles on a GPU: a call of cuDNN a piece, its parts added into float32.

use super::cudnn::{Binding, Handle, Plan, Problem, Scalar, TensorId, backward, forward};
use super::error::{Error, driver};
use super::operands::{Operands, Room, Scratch};
use super::parts::{Parts, StateAt};
use super::pieces::{Piece, pieces};
use crate::tile::{Gather, Tile};
use cudarc::driver::{CudaStream, result};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of an element of 16 bits, and of float32.
const IO: usize = 2;
const F32: usize = 4;

/// Attention on one stream of a GPU.
pub struct Attention {
    stream: Arc<CudaStream>,
    handle: Handle,
    parts: Parts,
    /// Bytes that a call's workspace may have.
    most: usize,
    plans: HashMap<(bool, Problem), Arc<Plan>>,
}

/// A carried state on the device: acc `[batch, q_heads, q_rows, value_dim]`, max and sum `[batch, q_heads, q_rows]`, all
/// float32. See [`crate::State`].
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Address of acc.
    pub acc: u64,
    /// Address of max.
    pub max: u64,
    /// Address of sum.
    pub sum: u64,
}

/// What a backward reads and adds to, on the device.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// The whole attention's output, of the operands' type, `[batch, q_rows, q_heads, value_dim]`.
    pub o: u64,
    /// Its gradient, likewise.
    pub d_o: u64,
    /// The whole attention's log-sum-exp, float32 `[batch, q_heads, q_rows]`.
    pub lse: u64,
    /// Float32 sums, of q's shape.
    pub dq: u64,
    /// Float32 sums, of k's shape.
    pub dk: u64,
    /// Float32 sums, of v's shape.
    pub dv: u64,
}

/// K and V rows of a piece that lie side by side.
struct Keys {
    k: u64,
    v: u64,
}

impl Attention {
    /// For operands of `element`, with workspaces of at most `most` bytes. Fails where a library is absent or too old.
    pub fn new(stream: &Arc<CudaStream>, element: super::Element, most: usize) -> Result<Self, Error> {
        let handle = Handle::new(stream)?;
        let parts = Parts::new(stream, element)?;
        Ok(Self { stream: stream.clone(), handle, parts, most, plans: HashMap::new() })
    }

    /// cuDNN's version.
    pub fn version(&self) -> String {
        self.handle.version()
    }

    fn plan(&mut self, is_backward: bool, problem: &Problem) -> Result<Arc<Plan>, Error> {
        let key = (is_backward, *problem);
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        problem.check()?;
        let (graph, what) = match is_backward {
            false => (forward(problem).graph, "a forward"),
            true => (backward(problem).graph, "a backward"),
        };
        let plan = Arc::new(Plan::new(&self.handle, &graph, what, self.most)?);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Bytes of scratch that [`Attention::forward`] needs for `tiles`. Makes the plans.
    pub fn forward_scratch(&mut self, operands: &Operands, tiles: &[Tile]) -> Result<usize, Error> {
        self.scratch(operands, tiles, false)
    }

    /// Bytes of scratch that [`Attention::backward`] needs for `tiles`. Makes the plans.
    pub fn backward_scratch(&mut self, operands: &Operands, tiles: &[Tile]) -> Result<usize, Error> {
        self.scratch(operands, tiles, true)
    }

    fn scratch(&mut self, operands: &Operands, tiles: &[Tile], is_backward: bool) -> Result<usize, Error> {
        let mut most = 0;
        for tile in tiles {
            for piece in pieces_of(tile) {
                let problem = operands.problem(&piece);
                let plan = self.plan(is_backward, &problem)?;
                most = most.max(need(operands, tile, &piece, &problem, &plan, is_backward));
            }
        }
        Ok(most)
    }

    /// Queues the writing of the identity into a state of `operands`' queries.
    ///
    /// # Safety
    /// The state's memory must be as large as its shape says, and nobody else's until the stream has run this.
    pub unsafe fn reset(&self, operands: &Operands, state: State) -> Result<(), Error> {
        let rows = operands.batch * operands.q_heads * operands.q_rows;
        // SAFETY: the caller's promise.
        unsafe { self.parts.reset(state.max, state.sum, rows as i64) }
    }

    /// Queues the forward of `tiles`: their parts are added to `state`.
    ///
    /// # Safety
    /// All addresses must be of device memory as large as the shapes say, 16-byte aligned, that nobody else writes (nor
    /// reads, of the state and the scratch) until the stream has run this; tiles must lie within the operands.
    pub unsafe fn forward(
        &mut self,
        operands: &Operands,
        tiles: &[Tile],
        scale: f32,
        state: State,
        scratch: Scratch,
    ) -> Result<(), Error> {
        for tile in tiles {
            for piece in pieces_of(tile) {
                let problem = operands.problem(&piece);
                let plan = self.plan(false, &problem)?;
                enough(scratch, need(operands, tile, &piece, &problem, &plan, false))?;
                let graph = forward(&problem);
                for b in tile.batch.clone() {
                    let mut room = Room::of(scratch);
                    // SAFETY: the caller's promise, and the scratch is large enough.
                    let keys = unsafe { self.keys(operands, tile, &piece, &problem, b, &mut room) }?;
                    let part = ForwardRoom::take(operands, &problem, &plan, &mut room);
                    let first = b * operands.q_rows + tile.q.start + piece.rows.start as usize;
                    let mut bindings = vec![
                        (graph.q, Binding::Memory(operands.q + (first * operands.q_row() * IO) as u64)),
                        (graph.k, Binding::Memory(keys.k)),
                        (graph.v, Binding::Memory(keys.v)),
                        (graph.scale, Binding::Value(Scalar::F32(scale))),
                        (graph.o, Binding::Memory(part.o)),
                        (graph.lse, Binding::Memory(part.lse)),
                    ];
                    bindings.extend(graph.mask.bindings(problem.bound));
                    // SAFETY: the caller's promise, and the scratch is large enough.
                    unsafe { plan.execute(&mut self.handle, &bindings, part.workspace) }?;
                    let shape = [problem.q_len, problem.q_heads, problem.value_dim].map(|size| size as i32);
                    let at = state_at(operands, state, b);
                    let row = (tile.q.start as i64 + piece.rows.start) as i32;
                    // SAFETY: as above.
                    unsafe { self.parts.absorb(part.o, part.lse, at, shape, row) }?;
                }
            }
        }
        Ok(())
    }

    /// Queues the normalisation of a state: `rounded` of the operands' type and `out` in float32 (none where 0), both
    /// `[batch, q_rows, q_heads, value_dim]`, and lse `[batch, q_heads, q_rows]`.
    ///
    /// # Safety
    /// As [`Attention::forward`].
    pub unsafe fn finish(
        &self,
        operands: &Operands,
        state: State,
        out: u64,
        rounded: u64,
        lse: u64,
    ) -> Result<(), Error> {
        for b in 0..operands.batch {
            let elements = b * operands.q_rows * operands.o_row();
            let outputs = [
                if out == 0 { 0 } else { out + (elements * F32) as u64 },
                rounded + (elements * IO) as u64,
                lse + (b * operands.q_heads * operands.q_rows * F32) as u64,
            ];
            let (heads, dim) = (operands.q_heads as i32, operands.value_dim as i32);
            // SAFETY: the caller's promise.
            unsafe { self.parts.finish(state_at(operands, state, b), outputs, heads, dim) }?;
        }
        Ok(())
    }

    /// Queues the backward of `tiles`: their parts are added to the sums in `gradients`.
    ///
    /// # Safety
    /// As [`Attention::forward`].
    pub unsafe fn backward(
        &mut self,
        operands: &Operands,
        tiles: &[Tile],
        scale: f32,
        gradients: Gradients,
        scratch: Scratch,
    ) -> Result<(), Error> {
        for tile in tiles {
            for piece in pieces_of(tile) {
                let problem = operands.problem(&piece);
                let plan = self.plan(true, &problem)?;
                enough(scratch, need(operands, tile, &piece, &problem, &plan, true))?;
                for b in tile.batch.clone() {
                    let mut room = Room::of(scratch);
                    // SAFETY: the caller's promise.
                    let keys = unsafe { self.keys(operands, tile, &piece, &problem, b, &mut room) }?;
                    let mut part = BackwardRoom::take(operands, &problem, &plan, &mut room);
                    let row = tile.q.start + piece.rows.start as usize;
                    // SAFETY: as above.
                    unsafe {
                        part.lse = self.packed_lse(operands, gradients.lse, b, row, &problem, part.lse)?;
                        self.backward_call(
                            operands, &problem, &plan, scale, gradients, &keys, &part, b, row,
                        )?;
                        self.add_parts(operands, tile, &piece, gradients, &part, b, row)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Attention::forward`].
    #[allow(clippy::too_many_arguments)] // one call's operands
    unsafe fn backward_call(
        &mut self,
        operands: &Operands,
        problem: &Problem,
        plan: &Plan,
        scale: f32,
        gradients: Gradients,
        keys: &Keys,
        part: &BackwardRoom,
        b: usize,
        row: usize,
    ) -> Result<(), Error> {
        let graph = backward(problem);
        let first = b * operands.q_rows + row;
        let rows = |address: u64, width: usize| Binding::Memory(address + (first * width * IO) as u64);
        let memory = |id: TensorId, address: u64| (id, Binding::Memory(address));
        let value = |id: TensorId, number: f32| (id, Binding::Value(Scalar::F32(number)));
        let mut bindings = vec![
            (graph.q, rows(operands.q, operands.q_row())),
            memory(graph.k, keys.k),
            memory(graph.v, keys.v),
            (graph.o, rows(gradients.o, operands.o_row())),
            (graph.d_o, rows(gradients.d_o, operands.o_row())),
            memory(graph.lse, part.lse),
            value(graph.scale, scale),
            value(graph.one, 1.0),
            memory(graph.row_sums, part.row_sums),
            memory(graph.dq_sum, part.dq_sum),
            memory(graph.dq, part.dq),
            memory(graph.dk, part.dk),
            memory(graph.dv, part.dv),
        ];
        bindings.extend(graph.mask.bindings(problem.bound));
        // SAFETY: the caller's promise.
        Ok(unsafe { plan.execute(&mut self.handle, &bindings, part.workspace) }?)
    }

    /// Adds a piece's gradients where they belong.
    ///
    /// # Safety
    /// As [`Attention::forward`].
    #[allow(clippy::too_many_arguments)] // where from, and where to
    unsafe fn add_parts(
        &self,
        operands: &Operands,
        tile: &Tile,
        piece: &Piece,
        gradients: Gradients,
        part: &BackwardRoom,
        b: usize,
        row: usize,
    ) -> Result<(), Error> {
        let rows = (piece.rows.end - piece.rows.start) as usize;
        let first = b * operands.q_rows + row;
        let q_row = operands.q_row();
        // SAFETY: the caller's promise.
        unsafe {
            self.parts.add(gradients.dq + (first * q_row * F32) as u64, part.dq, (rows * q_row) as i64)
        }?;
        let mut at = 0;
        for keys in ranges(tile, piece) {
            let first = b * operands.kv_rows + keys.start;
            for (sum, from, width) in
                [(gradients.dk, part.dk, operands.k_row()), (gradients.dv, part.dv, operands.v_row())]
            {
                let (sum, from) = (sum + (first * width * F32) as u64, from + (at * width * IO) as u64);
                // SAFETY: the caller's promise.
                unsafe { self.parts.add(sum, from, (keys.len() * width) as i64) }?;
            }
            at += keys.len();
        }
        Ok(())
    }

    /// A piece's rows of lse side by side, as cuDNN reads them: where they are, or copied into `room`.
    ///
    /// # Safety
    /// As [`Attention::forward`].
    unsafe fn packed_lse(
        &self,
        operands: &Operands,
        lse: u64,
        b: usize,
        row: usize,
        problem: &Problem,
        room: u64,
    ) -> Result<u64, Error> {
        let lse = lse + (b * operands.q_heads * operands.q_rows * F32) as u64;
        if problem.q_len as usize == operands.q_rows {
            return Ok(lse);
        }
        let (shape, all) = ([problem.q_len, problem.q_heads].map(|size| size as i32), operands.q_rows as i32);
        // SAFETY: the caller's promise.
        unsafe { self.parts.pack(lse, room, shape, all, row as i32) }?;
        Ok(room)
    }

    /// The keys and values of a piece side by side: where they are, or gathered into `room`.
    ///
    /// # Safety
    /// As [`Attention::forward`].
    unsafe fn keys(
        &self,
        operands: &Operands,
        tile: &Tile,
        piece: &Piece,
        problem: &Problem,
        b: usize,
        room: &mut Room,
    ) -> Result<Keys, Error> {
        let row = |address: u64, row: usize, width: usize| {
            address + ((b * operands.kv_rows + row) * width * IO) as u64
        };
        let (k_row, v_row) = (operands.k_row(), operands.v_row());
        if let Some(first) = side_by_side(tile, piece, problem) {
            return Ok(Keys { k: row(operands.k, first, k_row), v: row(operands.v, first, v_row) });
        }
        let [k, v] = gather_room(operands, problem, room);
        let mut at = 0;
        for keys in ranges(tile, piece) {
            for (into, from, width) in [(k, operands.k, k_row), (v, operands.v, v_row)] {
                let bytes = keys.len() * width * IO;
                // SAFETY: the caller's promise.
                unsafe { self.copy(into + (at * width * IO) as u64, row(from, keys.start, width), bytes) }?;
            }
            at += keys.len();
        }
        if (at as i64) < problem.kv_len {
            // The key behind the diagonal, which nobody sees; NaN times 0 would be seen.
            for (into, width) in [(k, k_row), (v, v_row)] {
                let end = into + (at * width * IO) as u64;
                // SAFETY: as above.
                let zeroed = unsafe { result::memset_d8_async(end, 0, width * IO, self.stream.cu_stream()) };
                driver("a memset", zeroed)?;
            }
        }
        Ok(Keys { k, v })
    }

    /// # Safety
    /// Both must be device memory of that many bytes.
    unsafe fn copy(&self, into: u64, from: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        driver("a copy", unsafe { result::memcpy_dtod_async(into, from, bytes, self.stream.cu_stream()) })
    }
}

/// What a forward's call needs beside its operands.
struct ForwardRoom {
    o: u64,
    lse: u64,
    workspace: u64,
}

impl ForwardRoom {
    fn take(operands: &Operands, problem: &Problem, plan: &Plan, room: &mut Room) -> Self {
        let rows = problem.q_len as usize;
        Self {
            o: room.take(rows * operands.o_row() * IO),
            lse: room.take(rows * operands.q_heads * F32),
            workspace: room.take(plan.workspace()),
        }
    }
}

/// What a backward's call needs beside its operands.
struct BackwardRoom {
    lse: u64,
    row_sums: u64,
    dq_sum: u64,
    dq: u64,
    dk: u64,
    dv: u64,
    workspace: u64,
}

impl BackwardRoom {
    fn take(operands: &Operands, problem: &Problem, plan: &Plan, room: &mut Room) -> Self {
        let (rows, keys) = (problem.q_len as usize, problem.kv_len as usize);
        Self {
            lse: room.take(rows * operands.q_heads * F32),
            row_sums: room.take(rows * operands.q_heads * F32),
            dq_sum: room.take(rows * operands.q_row() * F32),
            dq: room.take(rows * operands.q_row() * IO),
            dk: room.take(keys * operands.k_row() * IO),
            dv: room.take(keys * operands.v_row() * IO),
            workspace: room.take(plan.workspace()),
        }
    }
}

/// Bytes of scratch that a piece takes.
fn need(
    operands: &Operands,
    tile: &Tile,
    piece: &Piece,
    problem: &Problem,
    plan: &Plan,
    is_backward: bool,
) -> usize {
    let mut room = Room::counting();
    if side_by_side(tile, piece, problem).is_none() {
        gather_room(operands, problem, &mut room);
    }
    match is_backward {
        false => drop(ForwardRoom::take(operands, problem, plan, &mut room)),
        true => drop(BackwardRoom::take(operands, problem, plan, &mut room)),
    }
    room.used()
}

fn enough(scratch: Scratch, needed: usize) -> Result<(), Error> {
    if needed <= scratch.len { Ok(()) } else { Err(Error::Scratch { given: scratch.len, needed }) }
}

fn state_at(operands: &Operands, state: State, b: usize) -> StateAt {
    let rows = b * operands.q_heads * operands.q_rows;
    StateAt {
        acc: state.acc + (rows * operands.value_dim * F32) as u64,
        max: state.max + (rows * F32) as u64,
        sum: state.sum + (rows * F32) as u64,
        rows: operands.q_rows as i32,
    }
}

fn pieces_of(tile: &Tile) -> Vec<Piece> {
    let keys: usize = tile.kv.iter().map(ExactSizeIterator::len).sum();
    pieces(tile.band, tile.q.len() as i64, keys as i64)
}

/// The key rows of a piece, in gathered order.
fn ranges(tile: &Tile, piece: &Piece) -> Vec<std::ops::Range<usize>> {
    let keys = piece.keys.start as usize..piece.keys.end as usize;
    Gather::new(tile.kv).pieces(keys).collect()
}

/// The first key row of a piece whose keys lie side by side already, and are as many as the call wants.
fn side_by_side(tile: &Tile, piece: &Piece, problem: &Problem) -> Option<usize> {
    let ranges = ranges(tile, piece);
    let joined = ranges.windows(2).all(|pair| pair[0].end == pair[1].start);
    let keys: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    (joined && keys as i64 == problem.kv_len).then(|| ranges[0].start)
}

fn gather_room(operands: &Operands, problem: &Problem, room: &mut Room) -> [u64; 2] {
    [operands.k_row(), operands.v_row()].map(|width| room.take(problem.kv_len as usize * width * IO))
}

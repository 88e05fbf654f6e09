//! Kernels of a GPU.

use super::{Operands, Role, Total};
use crate::array::Array;
use crate::context_parallel::call::{Call, Dims};
use crate::context_parallel::exchange::Rows;
use crate::context_parallel::forward::{Carried, Outputs};
use crate::context_parallel::heap::Heap;
use crate::context_parallel::returns::{Grads, Run};
use crate::error::Error;
use crate::options::Options;
use longreach_device::cuda;
use longreach_device::sync::process::Mutex;
use longreach_kernels::cuda::{
    Adder, Context, Memory, Settings, State, Sum, View, accepts, backward, cast, finish, forward, reset,
    settle,
};
use longreach_kernels::{DType, Tile};
use longreach_shmem::Team;
use std::sync::{Arc, PoisonError};

/// Kernels on an engine's streams of a GPU. What they are given is in the memory of that GPU, and stays there until the
/// stream has done its work, since the work's loans do.
pub(super) struct Kernels {
    stream: Arc<cuda::Stream>,
    add: Arc<cuda::Stream>,
    work: Mutex<Work>,
    adder: Mutex<Adder>,
    team: Team,
}

struct Work {
    context: Context,
    /// Grows with what calls need; used by one piece of work after another.
    scratch: Option<cuda::Memory>,
}

impl Kernels {
    pub(super) fn new(
        team: &Team,
        options: &Options,
        compute: &Arc<cuda::Stream>,
        add: &Arc<cuda::Stream>,
    ) -> Result<Self, Error> {
        let settings = Settings { workspace: options.workspace, deterministic: options.deterministic };
        let context = Context::new(compute.raw(), settings)?;
        Ok(Self {
            stream: compute.clone(),
            add: add.clone(),
            work: Mutex::new(Work { context, scratch: None }),
            adder: Mutex::new(Adder::new(add.raw())?),
            team: team.clone(),
        })
    }

    fn work<T>(&self, work: impl FnOnce(&mut Work) -> Result<T, Error>) -> Result<T, Error> {
        let value = work(&mut self.work.lock().unwrap_or_else(PoisonError::into_inner))?;
        self.team.tick();
        Ok(value)
    }
}

impl Work {
    /// Runs `kernels` with scratch, and again with more where they say that they need it: they queue nothing then.
    fn with_scratch(
        &mut self,
        stream: &cuda::Stream,
        mut kernels: impl FnMut(&mut Context, Memory) -> Result<(), longreach_kernels::Error>,
    ) -> Result<(), Error> {
        let given = self.scratch.as_ref().map_or(NONE, whole);
        let needed = match kernels(&mut self.context, given) {
            Err(longreach_kernels::Error::Scratch { needed, .. }) => needed,
            outcome => return Ok(outcome?),
        };
        if let Some(scratch) = self.scratch.take() {
            stream.keep(scratch);
        }
        let scratch = self.scratch.insert(cuda::Memory::new(stream.gpu(), needed)?);
        Ok(kernels(&mut self.context, whole(scratch))?)
    }
}

// SAFETY: no kernel is given memory of no bytes to touch.
const NONE: Memory = unsafe { Memory::new(0, 0) };

fn whole(memory: &cuda::Memory) -> Memory {
    // SAFETY: it is memory of the GPU; work that is queued with it holds a loan or a filling of it, or is the only user
    // of scratch, until the GPU has done it.
    unsafe { Memory::new(memory.address(), memory.len()) }
}

/// The array as so many float32 elements, which are its first.
fn floats(array: &Array, len: usize) -> Result<Memory, Error> {
    let memory = array.gpu()?;
    match len.checked_mul(4).filter(|&bytes| bytes <= memory.len()) {
        // SAFETY: as in `whole`.
        Some(bytes) => Ok(unsafe { Memory::new(memory.address(), bytes) }),
        None => Err(Error::Input(format!("{len} float32 elements of {} bytes on a GPU", memory.len()))),
    }
}

fn view(array: &Array, shape: [usize; 4]) -> Result<View, Error> {
    Ok(View::contiguous(whole(array.gpu()?), array.dtype(), shape)?)
}

fn views(call: &Call, stage: usize, rows: &Rows) -> Result<(View, View), Error> {
    let [k, v] = call.kv_shapes(stage);
    Ok((view(&rows.k, k)?, view(&rows.v, v)?))
}

/// What the kernels know of the array: it has been made by `reset` or `clear`.
fn known<T>(known: &mut Option<T>) -> Result<&mut T, Error> {
    known.as_mut().ok_or_else(|| Error::Input("a sum was used before it was cleared".to_owned()))
}

impl super::Kernels for Kernels {
    fn launch_flops(&self) -> u64 {
        // A launch is a stage: cuDNN is given all its tiles at once.
        u64::MAX
    }

    fn accepts(&self, dims: &Dims) -> Result<(), Error> {
        Ok(accepts(dims.dtype, dims.head_dim, dims.value_dim)?)
    }

    fn reset(&self, call: &Call, carried: &mut Carried) -> Result<(), Error> {
        let shape = call.out_shape();
        let rows = shape[0] * shape[1] * shape[2];
        let acc = floats(&carried.acc, rows * shape[3])?;
        let [max, sum] = [floats(&carried.max, rows)?, floats(&carried.sum, rows)?];
        let state = carried.state.insert(State::new(acc, max, sum, shape)?);
        self.work(|work| Ok(reset(&work.context, state)?))
    }

    fn forward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        q: &Array,
        rows: &Rows,
        carried: &mut Carried,
    ) -> Result<(), Error> {
        let (q, (k, v)) = (view(q, q.shape())?, views(call, stage, rows)?);
        let state = known(&mut carried.state)?;
        self.work(|work| {
            work.with_scratch(&self.stream, |cx, scratch| {
                forward(cx, &q, &k, &v, call.scale, tiles, scratch, state)
            })
        })
    }

    fn finish(&self, call: &Call, carried: &mut Carried, outputs: &mut Outputs) -> Result<(), Error> {
        let state = known(&mut carried.state)?;
        let shape = call.out_shape();
        let lse = floats(&outputs.lse, shape[0] * shape[1] * shape[2])?;
        self.work(|work| {
            for out in outputs.rounded.iter().chain(&outputs.exact) {
                finish(&work.context, state, &view(out, shape)?, lse)?;
            }
            Ok(())
        })
    }

    fn delta_len(&self, _rows: usize) -> usize {
        // cuDNN sums for itself.
        0
    }

    fn delta(&self, _dout: &Array, _outputs: &Outputs, _delta: &mut Array) -> Result<(), Error> {
        Ok(())
    }

    fn clear(&self, total: &mut Total, shape: [usize; 4]) -> Result<(), Error> {
        let sum = total.sum.insert(Sum::new(floats(&total.array, shape.iter().product())?, shape)?);
        sum.clear();
        Ok(())
    }

    fn backward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        operands: &Operands,
        dq: &mut Total,
        grads: &mut Grads,
    ) -> Result<(), Error> {
        let Operands { q, rows, dout, outputs, .. } = operands;
        let Some(out) = &outputs.rounded else {
            return Err(Error::Input("there is no output in the inputs' type".to_owned()));
        };
        let shape = call.out_shape();
        let lse = floats(&outputs.lse, shape[0] * shape[1] * shape[2])?;
        let (q, (k, v)) = (view(q, q.shape())?, views(call, stage, rows)?);
        let (out, dout) = (view(out, shape)?, view(dout, shape)?);
        let (dq, dk) = (known(&mut dq.sum)?, known(&mut grads.dk.sum)?);
        let dv = known(&mut grads.dv.sum)?;
        self.work(|work| {
            work.with_scratch(&self.stream, |cx, scratch| {
                backward(cx, &q, &k, &v, &out, &dout, lse, call.scale, tiles, scratch, dq, dk, dv)
            })
        })
    }

    fn settle(&self, total: &mut Total) -> Result<(), Error> {
        let sum = known(&mut total.sum)?;
        self.work(|work| Ok(settle(&work.context, sum)?))
    }

    fn round(&self, total: &mut Total, role: Role) -> Result<(), Error> {
        let Some(rounded) = &total.rounded else { return Ok(()) };
        let to = view(rounded, rounded.shape())?;
        match role {
            Role::Compute => self.work(|work| Ok(cast(&work.context, known(&mut total.sum)?, &to)?)),
            Role::Add => {
                let from = floats(&total.array, rounded.shape().iter().product())?;
                Ok(self.adder.lock().unwrap_or_else(PoisonError::into_inner).round(from, &to)?)
            }
        }
    }

    fn brings(&self) -> bool {
        false
    }

    fn add(
        &self,
        call: &Call,
        heap: &Heap,
        slot: usize,
        _brought: &Array,
        runs: &[Run],
        home: &mut Grads,
    ) -> Result<(), Error> {
        let adder = self.adder.lock().unwrap_or_else(PoisonError::into_inner);
        let own = call.kv_shapes(0);
        for value in [false, true] {
            let (total, width, [batch, rows, ..]) = if value {
                (&home.dv, call.dims.v_row(), own[1])
            } else {
                (&home.dk, call.dims.k_row(), own[0])
            };
            let mut runs = runs.iter().filter(|run| run.value == value).peekable();
            let Some(first) = runs.peek().map(|run| run.at) else { continue };
            // A contribution has all keys' rows, then all values'.
            let pieces: Vec<_> = runs.map(|run| ((run.at - first) / width, run.row, run.rows)).collect();
            let bytes = pieces.iter().map(|piece| piece.2).sum::<usize>() * width * DType::F32.size();
            let address = heap.buffer.own_on_gpu(&self.add, slot + first * DType::F32.size(), bytes)?;
            // SAFETY: the heap has as many bytes there and the stream keeps it; the writer has signalled, and the next one
            // is granted the slot behind this work.
            let from = unsafe { Memory::new(address, bytes) };
            adder.add(from, floats(&total.array, batch * rows * width)?, width, &pieces)?;
        }
        self.team.tick();
        Ok(())
    }
}

/// A link on a stream of a GPU.
pub(super) struct Link {
    link: Mutex<longreach_kernels::cuda::Link>,
    /// Where the link keeps its time.
    _began: cuda::Memory,
}

impl Link {
    pub(super) fn new(rate: f64, comm: &Arc<cuda::Stream>) -> Result<Self, Error> {
        let began = cuda::Memory::new(comm.gpu(), 8)?;
        let link = longreach_kernels::cuda::Link::new(comm.raw(), rate, whole(&began))?;
        Ok(Self { link: Mutex::new(link), _began: began })
    }
}

impl super::Link for Link {
    fn begin(&self) -> Result<(), Error> {
        Ok(self.link.lock().unwrap_or_else(PoisonError::into_inner).begin()?)
    }

    fn end(&self, bytes: u64) -> Result<(), Error> {
        Ok(self.link.lock().unwrap_or_else(PoisonError::into_inner).end(bytes)?)
    }
}

//! Context-parallel attention on a team of PEs.

mod backward;
mod call;
mod compute;
mod exchange;
mod forward;
mod heap;
mod plans;
mod returns;
mod stages;
mod statistics;

use crate::attention::Attention;
use crate::error::Error;
use crate::options::{HeapSize, Options};
use crate::tensor::Tensor;
use backward::KeyValueGrads;
use call::{Call, describe};
pub use call::{Dims, Direction};
use compute::Threads;
use exchange::{ADD, COMM, COMPUTE, RETURN, Rows};
use forward::{Inputs, Outputs};
use heap::Heap;
use longreach_device::sync::{Mutex, lock};
use longreach_device::{Pending, Stream, Timeline};
use longreach_kernels::View;
use longreach_plan::{Plan, Shards};
use longreach_shmem::Team;
pub use plans::plan;
pub use statistics::Statistics;
use std::sync::Arc;

/// Attention over sequences whose tokens are spread over the PEs of a team.
///
/// Calls are made by all PEs of the team in the same order. A call queues its work and returns at once; its outputs
/// are read with [`Output::wait`].
#[derive(Clone)]
pub struct ContextParallel {
    engine: Arc<Engine>,
}

struct Engine {
    compute: Stream,
    comm: Stream,
    put: Stream,
    add: Stream,
    team: Team,
    heap: Heap,
    threads: Threads,
    timeline: Timeline,
    options: Options,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    epoch: u64,
}

/// What a forward produces.
pub struct Forward {
    /// `[batch, rows, query heads, value_dim]`, float32.
    pub out: Output,
    /// Natural log of the sum of exponentials, `[batch, query heads, rows, 1]`, float32; -inf where nothing is seen.
    pub lse: Output,
    /// What the backward needs.
    pub saved: Saved,
}

/// A forward's inputs and outputs, kept for its backward. They are this PE's own: nothing symmetric is kept.
pub struct Saved {
    engine: Arc<Engine>,
    call: Call,
    attention: Attention,
    inputs: Inputs,
    outputs: Arc<Pending<Outputs>>,
}

/// What a backward produces.
pub struct Gradients {
    /// As q, float32.
    pub dq: Output,
    /// As k, float32.
    pub dk: Output,
    /// As v, float32.
    pub dv: Output,
    engine: Arc<Engine>,
    call: Call,
}

/// A tensor that is still being computed.
pub struct Output {
    inner: Inner,
    engine: Arc<Engine>,
}

/// Calls whose spans are kept for [`Statistics`].
const KEPT: u64 = 256;

enum Inner {
    Out(Arc<Pending<Outputs>>),
    Lse(Arc<Pending<Outputs>>),
    Dq(Pending<Tensor>),
    Dk(Arc<Pending<KeyValueGrads>>),
    Dv(Arc<Pending<KeyValueGrads>>),
}

impl Output {
    /// Blocks until the tensor is there. Fails when the call failed on any PE.
    pub fn wait(&self) -> Result<&Tensor, Error> {
        let tensor = match &self.inner {
            Inner::Out(pending) => self.host_waits(COMPUTE, || Ok(&pending.read()?.out)),
            Inner::Lse(pending) => self.host_waits(COMPUTE, || Ok(&pending.read()?.lse)),
            Inner::Dq(pending) => self.host_waits(COMPUTE, || pending.read()),
            Inner::Dk(pending) => self.host_waits(ADD, || Ok(&pending.read()?.dk)),
            Inner::Dv(pending) => self.host_waits(ADD, || Ok(&pending.read()?.dv)),
        }?;
        Ok(tensor)
    }

    fn host_waits<'t>(
        &self,
        role: &str,
        read: impl FnOnce() -> Result<&'t Tensor, longreach_device::Error>,
    ) -> Result<&'t Tensor, Error> {
        self.engine.team.host_waits(role, read).map_err(Error::from)
    }
}

impl ContextParallel {
    /// Starts the streams and reserves symmetric memory. Collective over the team; all PEs give the same options
    /// (but `threads` and `before_stage`).
    pub fn new(team: &Team, options: &Options) -> Result<Self, Error> {
        let heap = Heap::new(team, options)?;
        let timeline = team.timeline();
        Ok(Self {
            engine: Arc::new(Engine {
                compute: team.stream(COMPUTE, &timeline)?,
                comm: team.stream(COMM, &timeline)?,
                put: team.stream(RETURN, &timeline)?,
                add: team.stream(ADD, &timeline)?,
                threads: Threads::new(team, options.threads)?,
                team: team.clone(),
                heap,
                timeline,
                options: options.clone(),
                calls: Mutex::default(),
            }),
        })
    }

    /// Gives the symmetric memory up, after all queued work. Collective over the team.
    pub fn free(self) -> Result<(), Error> {
        let engine = &self.engine;
        engine.synchronize()?;
        engine.heap.clone().free()
    }

    /// The team.
    pub fn team(&self) -> &Team {
        &self.engine.team
    }

    /// Who holds which queries and which keys of `attention`, for `batch` batch rows. Not collective.
    pub fn shards(&self, batch: usize, attention: &Attention) -> Result<(Shards, Shards), Error> {
        shards(self.engine.team.size(), batch, attention, &self.engine.options)
    }

    /// Bytes of symmetric memory that this PE holds.
    pub fn heap_bytes(&self) -> usize {
        self.engine.heap.bytes()
    }

    /// Attention of this PE's queries over all PEs' keys and values. Collective over the team.
    ///
    /// `q` `[batch, rows, query heads, head_dim]`, `k` `[batch, rows, kv heads, head_dim]` and `v` `[batch, rows, kv
    /// heads, value_dim]` are this PE's rows in the order of [`ContextParallel::shards`], of one type, with any
    /// strides; they are copied before the call returns. A refused call is an error on every PE.
    pub fn forward(&self, q: &View, k: &View, v: &View, attention: &Attention) -> Result<Forward, Error> {
        let engine = &self.engine;
        let mut calls = lock(&engine.calls);
        let call = engine.prepare(&mut calls, q, k, v, attention).map_err(|error| engine.refused(error))?;
        let queue = || -> Result<(Inputs, Pending<Outputs>), Error> {
            let kv = Rows { k: Tensor::copy_of(k)?.into_elements(), v: Tensor::copy_of(v)?.into_elements() };
            let inputs =
                Inputs { q: Pending::ready("q", Tensor::copy_of(q)?), kv: Pending::ready("k and v", kv) };
            let outputs = engine.queue_forward(&call, &inputs)?;
            Ok((inputs, outputs))
        };
        let (inputs, outputs) = queue().map_err(|error| engine.refused(error))?;
        let outputs = Arc::new(outputs);
        let output = |inner| Output { inner, engine: engine.clone() };
        Ok(Forward {
            out: output(Inner::Out(outputs.clone())),
            lse: output(Inner::Lse(outputs.clone())),
            saved: Saved { engine: engine.clone(), call, attention: attention.clone(), inputs, outputs },
        })
    }
}

impl Saved {
    /// Gradients of this PE's rows, from `dout` `[batch, rows, query heads, value_dim]` of any type and strides,
    /// copied before the call returns. Collective over the team; forwards may be differentiated in any order, the
    /// same on all PEs.
    pub fn backward(self, dout: &View) -> Result<Gradients, Error> {
        let engine = self.engine.clone();
        let mut calls = lock(&engine.calls);
        let dims = self.call.dims;
        let expected = [dims.batch, self.call.pe_plan().q_rows, dims.q_heads, dims.value_dim];
        if dout.shape() != expected {
            let text = format!("dout has shape {:?}: it must have that of out, {expected:?}", dout.shape());
            return Err(engine.refused(Error::Input(text)));
        }
        let call =
            engine.number(&mut calls, Direction::Backward, &self.attention, self.call.plan.clone(), dims);
        let (dq, grads) = Tensor::copy_of(dout)
            .and_then(|dout| {
                engine.queue_backward(&call, &self.inputs, &self.outputs, &Pending::ready("dout", dout))
            })
            .map_err(|error| engine.refused(error))?;
        let grads = Arc::new(grads);
        let output = |inner| Output { inner, engine: engine.clone() };
        Ok(Gradients {
            dq: output(Inner::Dq(dq)),
            dk: output(Inner::Dk(grads.clone())),
            dv: output(Inner::Dv(grads)),
            call,
            engine: engine.clone(),
        })
    }

    /// What the forward did and when; waits for it to end. Fails more than 256 calls later. Not collective.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        self.engine.statistics(&self.call)
    }

    /// The forward's plan, of all PEs.
    pub fn plan(&self) -> &Plan {
        &self.call.plan
    }
}

impl Gradients {
    /// What the backward did and when; waits for it to end. Fails more than 256 calls later. Not collective.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        self.engine.statistics(&self.call)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Their work may wait for peers that wait for this PE's next call, and a PE that fails makes none: waiting here
        // would keep it from saying so. Queued work owns what it uses.
        for stream in [&mut self.compute, &mut self.comm, &mut self.put, &mut self.add] {
            stream.detach();
        }
    }
}

impl Engine {
    /// Checks a call's arguments and plans it.
    fn prepare(
        &self,
        calls: &mut Calls,
        q: &View,
        k: &View,
        v: &View,
        attention: &Attention,
    ) -> Result<Call, Error> {
        let dims = Dims::of(q, k, v)?;
        if let Some(scale) = attention.scale
            && !scale.is_finite()
        {
            return Err(Error::Input(format!("scale {scale}: it must be finite")));
        }
        let (plan, need) = plan(self.team.size(), attention, &dims, &self.options)?;
        let own = &plan.pes[self.team.rank()];
        let rows = |what: &str, given: usize, held: usize| {
            if given == held {
                return Ok(());
            }
            Err(Error::Input(format!(
                "{what} has {given} rows: team rank {} holds {held} of them under layout {}",
                self.team.rank(),
                self.options.layout
            )))
        };
        rows("q", q.shape()[1], own.q_rows)?;
        rows("k", k.shape()[1], own.kv_rows)?;
        let size = HeapSize::of(&need);
        let fits = |what, needed, reserved| {
            if needed <= reserved { Ok(()) } else { Err(Error::HeapTooSmall { what, needed, reserved }) }
        };
        fits("a publish slot", size.publish, self.heap.publish_capacity())?;
        fits("a gradient return slot", size.contribution, self.heap.contribution_capacity())?;
        Ok(self.number(calls, Direction::Forward, attention, plan, dims))
    }

    /// Gives a call the next epoch.
    fn number(
        &self,
        calls: &mut Calls,
        direction: Direction,
        attention: &Attention,
        plan: Arc<Plan>,
        dims: Dims,
    ) -> Call {
        calls.epoch += 1;
        self.timeline.forget_before(calls.epoch.saturating_sub(KEPT));
        let scale = attention.scale_for(dims.head_dim);
        Call {
            epoch: calls.epoch,
            direction,
            plan,
            me: self.team.rank(),
            dims,
            scale,
            description: Arc::new(describe(calls.epoch, direction, attention, &dims, scale, &self.options)),
            start: self.timeline.now(),
        }
    }

    /// A PE that refuses its own call tells the team why: the others would wait for it in vain.
    fn refused(&self, error: Error) -> Error {
        match error {
            Error::Shmem(error) => Error::Shmem(error),
            Error::OutOfMemory { .. } => {
                self.team.fail(&error.to_string());
                error
            }
            refusal => {
                // Others get the failure that counts; this PE its own error, with its type.
                self.team.refuse(&refusal.to_string());
                refusal
            }
        }
    }
}

/// Who holds which queries and which keys of `attention` on `pes` PEs, for `batch` batch rows.
pub fn shards(
    pes: usize,
    batch: usize,
    attention: &Attention,
    options: &Options,
) -> Result<(Shards, Shards), Error> {
    let Attention { mask, q_len, kv_len, .. } = attention;
    Ok(longreach_plan::shards(mask, &options.layout, batch, pes, *q_len, *kv_len)?)
}

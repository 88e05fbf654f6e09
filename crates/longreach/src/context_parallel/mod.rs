//! Context-parallel attention on a team of PEs.

mod backward;
mod call;
mod device;
mod exchange;
mod forward;
mod heap;
mod plans;
mod returns;
mod room;
mod stages;
mod statistics;

use crate::array::{Array, Place};
use crate::attention::Attention;
use crate::error::Error;
use crate::gpu_tensor::{GpuTensor, Input};
use crate::options::{HeapSize, Options};
use crate::tensor::Tensor;
use call::{Call, describe};
pub use call::{Dims, Direction};
use device::{Kernels, Link, Total};
use exchange::{ADD, COMM, COMPUTE, RETURN, Rows};
use forward::{Inputs, Outputs};
use heap::Heap;
use longreach_device::sync::{Mutex, lock};
use longreach_device::{BytesMut, Fault, Filling, Kind, Label, Parts, Pending, Slot, Stream, Timeline};
use longreach_kernels::View;
use longreach_plan::{Plan, Shards};
use longreach_shmem::Team;
pub use plans::plan;
use returns::Grads;
use room::Room;
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
    place: Place,
    kernels: Arc<dyn Kernels>,
    link: Option<Arc<dyn Link>>,
    timeline: Timeline,
    options: Options,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    epoch: u64,
    room: Room,
}

/// What a forward produces.
pub struct Forward {
    /// `[batch, rows, query heads, value_dim]`, of the type that [`Options::precision`] says.
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
    /// As q, of the type that [`Options::precision`] says.
    pub dq: Output,
    /// As k.
    pub dk: Output,
    /// As v.
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
    Dq(Pending<Total>),
    Dk(Arc<Pending<Grads>>),
    Dv(Arc<Pending<Grads>>),
}

impl Output {
    /// Blocks until the tensor is there. Fails when the call failed on any PE.
    pub fn wait(&self) -> Result<&Tensor, Error> {
        let failed = || self.engine.failed();
        let array = match &self.inner {
            Inner::Out(pending) => self.host_waits(COMPUTE, || Ok(pending.read_unless(failed)?.out())),
            Inner::Lse(pending) => self.host_waits(COMPUTE, || Ok(&pending.read_unless(failed)?.lse)),
            Inner::Dq(pending) => self.host_waits(COMPUTE, || Ok(pending.read_unless(failed)?.result())),
            Inner::Dk(pending) => self.host_waits(ADD, || Ok(pending.read_unless(failed)?.dk.result())),
            Inner::Dv(pending) => self.host_waits(ADD, || Ok(pending.read_unless(failed)?.dv.result())),
        }?;
        array.tensor()
    }

    fn host_waits<'t>(
        &self,
        role: &str,
        read: impl FnOnce() -> Result<&'t Array, longreach_device::Error>,
    ) -> Result<&'t Array, Error> {
        self.engine.team.host_waits(role, read).map_err(Error::from)
    }
}

impl ContextParallel {
    /// Starts the streams and reserves symmetric memory. Collective over the team; all PEs give the same options
    /// (but `threads`, `before_stage` and the GPU's number).
    pub fn new(team: &Team, options: &Options) -> Result<Self, Error> {
        // A PE that cannot work says so: the others would wait for it in vain.
        let place = Place::of(options.device, team.ranks()[team.rank()]);
        let place = place.inspect_err(|error| drop(team.fail(&error.to_string())))?;
        let heap = Heap::new(team, &place, options)?;
        let timeline = team.timeline();
        let stream = |role| place.stream(team, role, &timeline);
        let [compute, comm, put, add] = [stream(COMPUTE)?, stream(COMM)?, stream(RETURN)?, stream(ADD)?];
        let kernels = device::kernels(team, options, &compute, &add);
        let kernels = kernels.inspect_err(|error| drop(team.fail(&error.to_string())))?;
        let link = options.get_bandwidth.map(|rate| device::link(rate, &comm)).transpose();
        let link = link.inspect_err(|error| drop(team.refuse(&error.to_string())))?;
        Ok(Self {
            engine: Arc::new(Engine {
                link,
                compute,
                comm,
                put,
                add,
                place,
                kernels,
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
    /// heads, value_dim]` are this PE's rows in the order of [`ContextParallel::shards`], of one type; see [`Input`]. A
    /// refused call is an error on every PE.
    pub fn forward<'a>(
        &self,
        q: impl Into<Input<'a>>,
        k: impl Into<Input<'a>>,
        v: impl Into<Input<'a>>,
        attention: &Attention,
    ) -> Result<Forward, Error> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let engine = &self.engine;
        let mut calls = lock(&engine.calls);
        let call = engine.prepare(&mut calls, q, k, v, attention).map_err(|error| engine.refused(error))?;
        let mut queue = || -> Result<(Inputs, Pending<Outputs>), Error> {
            let inputs = Inputs {
                q: engine.bring(&call, "q", q, &engine.compute)?,
                kv: engine.bring_rows(&call, k, v)?,
            };
            let outputs = engine.queue_forward(&mut calls.room, &call, &inputs)?;
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
    /// Gradients of this PE's rows, from `dout` `[batch, rows, query heads, value_dim]`, on a CPU of any
    /// type, on a GPU of the inputs'; see [`Input`]. Collective over the team; forwards may be differentiated in any order, the
    /// same on all PEs.
    pub fn backward<'a>(self, dout: impl Into<Input<'a>>) -> Result<Gradients, Error> {
        let dout = dout.into();
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
        let (dq, grads) = engine
            .bring(&call, "dout", dout, &engine.compute)
            .and_then(|dout| {
                engine.queue_backward(&mut calls.room, &call, &self.inputs, &self.outputs, &dout)
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
        q: Input,
        k: Input,
        v: Input,
        attention: &Attention,
    ) -> Result<Call, Error> {
        let dims = Dims::of(q, k, v)?;
        if let Some(scale) = attention.scale
            && !scale.is_finite()
        {
            return Err(Error::Input(format!("scale {scale}: it must be finite")));
        }
        self.kernels.accepts(&dims)?;
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

    /// Brings an input to where the engine works.
    fn bring(
        &self,
        call: &Call,
        name: &'static str,
        input: Input,
        stream: &Stream,
    ) -> Result<Pending<Array>, Error> {
        let view = match (input, &self.place) {
            (Input::Gpu(tensor), _) => return Ok(Pending::ready(name, self.own(name, tensor)?)),
            (Input::Host(view), Place::Host) => {
                return Ok(Pending::ready(name, Array::Host(Tensor::copy_of(&view)?)));
            }
            (Input::Host(view), Place::Gpu(_)) => view,
        };
        let array = Array::new(&self.place, name, view.dtype(), view.shape())?;
        let label = call.label(Kind::Publish, 0);
        let mut filling = Slot::new(name, array).fill(label.clone(), stream);
        upload(stream, label, &mut filling, 0, Tensor::copy_of(&view)?)?;
        Ok(filling.finish(stream)?)
    }

    /// As [`Engine::bring`], of K and V for the communication stream.
    fn bring_rows(&self, call: &Call, k: Input, v: Input) -> Result<Pending<Rows>, Error> {
        const NAME: &str = "k and v";
        let host = |view: View| Ok::<_, Error>(Array::Host(Tensor::copy_of(&view)?));
        let (k, v) = match (k, v, &self.place) {
            (Input::Gpu(k), Input::Gpu(v), _) => {
                let rows = Rows { k: self.own("k", k)?, v: self.own("v", v)? };
                return Ok(Pending::ready(NAME, rows));
            }
            (Input::Host(k), Input::Host(v), Place::Host) => {
                return Ok(Pending::ready(NAME, Rows { k: host(k)?, v: host(v)? }));
            }
            (Input::Host(k), Input::Host(v), Place::Gpu(_)) => (k, v),
            _ => return Err(Error::Input("k and v are not in one place: pass both from there".to_owned())),
        };
        let array = |view: &View| Array::new(&self.place, NAME, view.dtype(), view.shape());
        let label = call.label(Kind::Publish, 0);
        let rows = Rows { k: array(&k)?, v: array(&v)? };
        let mut filling = Slot::new(NAME, rows).fill(label.clone(), &self.comm);
        upload(&self.comm, label.clone(), &mut filling, 0, Tensor::copy_of(&k)?)?;
        upload(&self.comm, label, &mut filling, 1, Tensor::copy_of(&v)?)?;
        Ok(filling.finish(&self.comm)?)
    }

    /// A tensor on this engine's GPU; another place is refused.
    fn own(&self, name: &str, tensor: &GpuTensor) -> Result<Array, Error> {
        let given = tensor.gpu().ordinal();
        match &self.place {
            Place::Gpu(gpu) if gpu.ordinal() == given => Ok(tensor.clone().into()),
            Place::Gpu(gpu) => Err(Error::Input(format!(
                "{name} is on GPU {given} and this PE computes on GPU {}: pass it from there, or from the host",
                gpu.ordinal()
            ))),
            Place::Host => Err(Error::Input(format!(
                "{name} is on GPU {given} and this PE computes on the CPU: pass it from the host, or choose Device::Cuda"
            ))),
        }
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

    /// The world's failure, if it has failed.
    fn failed(&self) -> Option<Fault> {
        self.team.check().err().map(longreach_shmem::Error::into_fault)
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

/// Queues the copy of `tensor` into part `part` of what a stream of a GPU fills.
fn upload<T: Parts>(
    stream: &Stream,
    label: Label,
    filling: &mut Filling<T>,
    part: usize,
    tensor: Tensor,
) -> Result<(), Error> {
    let cuda = stream.cuda().cloned();
    stream.launch(label, (filling,), move |(filled,)| match (filled.part_mut(part), cuda) {
        (Some(BytesMut::Gpu(memory)), Some(cuda)) => {
            cuda.upload(tensor.elements().bytes(), memory).map_err(|error| error.into_fault())
        }
        _ => Err(Error::Input(format!("there is no part {part} on a GPU")).into_fault()),
    })?;
    Ok(())
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

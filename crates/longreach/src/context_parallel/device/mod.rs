//! Where an engine works: its memory, its streams, and the kernels that run on them.

mod cpu;
#[cfg(target_os = "linux")]
mod cuda;

use super::call::{Call, Dims};
use super::exchange::Rows;
use super::forward::{Carried, Outputs};
use super::heap::Heap;
use super::returns::{Grads, Run};
use crate::array::{Array, Place};
use crate::error::Error;
use crate::options::{Device, Options, Precision};
use longreach_device::{Stream, Timeline};
#[cfg(target_os = "linux")]
pub(super) use longreach_kernels::cuda::{State, Sum};
use longreach_kernels::{DType, Tile};
use longreach_shmem::Team;
use std::sync::Arc;

/// What kernels of a GPU know of a forward's state; there are none here.
#[cfg(not(target_os = "linux"))]
pub(super) enum State {}
/// What kernels of a GPU know of a gradient; there are none here.
#[cfg(not(target_os = "linux"))]
pub(super) enum Sum {}

/// What tiles of a backward read.
pub(super) struct Operands<'a> {
    pub(super) q: &'a Array,
    pub(super) rows: &'a Rows,
    pub(super) dout: &'a Array,
    pub(super) outputs: &'a Outputs,
    pub(super) delta: &'a Array,
}

/// A gradient that tiles add to in float32.
pub(super) struct Total {
    pub(super) array: Array,
    /// On a GPU, what its kernels know of the array.
    pub(super) sum: Option<Sum>,
    /// The same in the inputs' type, where that is what the caller gets.
    pub(super) rounded: Option<Array>,
}

impl Total {
    pub(super) fn new(array: Array) -> Self {
        Self { array, sum: None, rounded: None }
    }

    /// One that a caller gets, as `precision` says.
    pub(super) fn result_of(
        place: &Place,
        what: &'static str,
        shape: [usize; 4],
        dtype: DType,
        precision: Precision,
    ) -> Result<Self, Error> {
        let rounded = (precision == Precision::AsInputs).then(|| Array::new(place, what, dtype, shape));
        let array = Array::new(place, what, DType::F32, shape)?;
        Ok(Self { array, sum: None, rounded: rounded.transpose()? })
    }

    /// What the caller gets.
    pub(super) fn result(&self) -> &Array {
        self.rounded.as_ref().unwrap_or(&self.array)
    }
}

/// A stream that completes gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The compute stream.
    Compute,
    /// The stream that adds contributions.
    Add,
}

/// The kernels of an engine, for work on the compute stream where nothing else is said. `add` is for work on the adding
/// stream.
pub(super) trait Kernels: Send + Sync {
    /// A launch is filled with tiles up to so many operations.
    fn launch_flops(&self) -> u64;
    /// Refuses what the kernels do not take.
    fn accepts(&self, dims: &Dims) -> Result<(), Error>;
    /// Makes the state that of rows which have seen no key.
    fn reset(&self, call: &Call, carried: &mut Carried) -> Result<(), Error>;
    /// Adds tiles of a stage to the state.
    fn forward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        q: &Array,
        rows: &Rows,
        carried: &mut Carried,
    ) -> Result<(), Error>;
    /// Normalises the state.
    fn finish(&self, call: &Call, carried: &mut Carried, outputs: &mut Outputs) -> Result<(), Error>;
    /// Elements that delta has for so many rows.
    fn delta_len(&self, rows: usize) -> usize;
    /// Sums `out * dout` over each row.
    fn delta(&self, dout: &Array, outputs: &Outputs, delta: &mut Array) -> Result<(), Error>;
    /// Makes a gradient of `shape` zero.
    fn clear(&self, total: &mut Total, shape: [usize; 4]) -> Result<(), Error>;
    /// Adds tiles of a stage to the gradients.
    fn backward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        operands: &Operands,
        dq: &mut Total,
        grads: &mut Grads,
    ) -> Result<(), Error>;
    /// Makes a gradient's memory hold what it stands for.
    fn settle(&self, total: &mut Total) -> Result<(), Error>;
    /// Rounds a complete gradient, where that is what the caller gets, for work on the stream that completed it.
    fn round(&self, total: &mut Total, role: Role) -> Result<(), Error>;
    /// Whether a contribution is brought into an array of its own before it is added, or added from where it has arrived.
    fn brings(&self) -> bool;
    /// Adds rows of a contribution, which has arrived in `slot` of the heap and been brought into `brought`; each run says
    /// where they are and where they belong.
    fn add(
        &self,
        call: &Call,
        heap: &Heap,
        slot: usize,
        brought: &Array,
        runs: &[Run],
        home: &mut Grads,
    ) -> Result<(), Error>;
}

impl Place {
    /// Where PE `pe` works. Not collective.
    pub(super) fn of(device: Device, pe: usize) -> Result<Self, Error> {
        match device {
            Device::Cpu => Ok(Place::Host),
            Device::Cuda(_) => Ok(Place::Gpu(device.gpu(pe)?)),
        }
    }

    pub(super) fn stream(&self, team: &Team, role: &str, timeline: &Timeline) -> Result<Stream, Error> {
        Ok(match self {
            Place::Host => team.stream(role, timeline)?,
            Place::Gpu(gpu) => team.stream_on(role, timeline, gpu)?,
        })
    }
}

/// A link that gets are slowed down to.
pub(super) trait Link: Send + Sync {
    /// A transfer begins, in work on the communication stream.
    fn begin(&self) -> Result<(), Error>;
    /// It has moved so many bytes.
    fn end(&self, bytes: u64) -> Result<(), Error>;
}

/// The link of `rate` bytes a second for the communication stream.
pub(super) fn link(rate: f64, comm: &Stream) -> Result<Arc<dyn Link>, Error> {
    if rate.is_nan() || rate <= 0.0 {
        return Err(Error::Input(format!("gets at {rate} bytes a second: the rate must be more than 0")));
    }
    #[cfg(target_os = "linux")]
    if let Some(comm) = comm.cuda() {
        return Ok(Arc::new(cuda::Link::new(rate, comm)?));
    }
    let _ = comm;
    Ok(Arc::new(cpu::Link::new(rate)))
}

/// The kernels for streams of `place`.
pub(super) fn kernels(
    team: &Team,
    options: &Options,
    compute: &Stream,
    add: &Stream,
) -> Result<Arc<dyn Kernels>, Error> {
    #[cfg(target_os = "linux")]
    if let Some((compute, add)) = compute.cuda().zip(add.cuda()) {
        return Ok(Arc::new(cuda::Kernels::new(team, options, compute, add)?));
    }
    let _ = (compute, add);
    Ok(Arc::new(cpu::Kernels::new(team, options.threads)?))
}

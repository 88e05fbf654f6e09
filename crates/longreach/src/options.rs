//! How calls are carried out.

use crate::attention::Attention;
use crate::context_parallel::{Dims, Direction, plan};
use crate::error::Error;
use crate::turns::Turns;
use longreach_device::cuda::Gpu;
use longreach_plan::{Layout, Need};
use std::sync::Arc;

/// Into how many fetched stages a call is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// As many as the cost model finds best within the memory bound.
    Auto,
    /// So many, or fewer where a PE has less to fetch.
    Exactly(usize),
}

/// What a PE computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Threads of the CPU.
    #[default]
    Cpu,
    /// A GPU of NVIDIA: that of this number, or without one the PEs take the machine's in turn.
    Cuda(Option<usize>),
}

impl Device {
    /// The GPU of PE `pe` of its world. Fails where there is none, and for a CPU. Not collective.
    pub fn gpu(self, pe: usize) -> Result<Arc<Gpu>, Error> {
        match self {
            Device::Cpu => {
                Err(Error::Input("the device is a CPU: ask for its GPU with Device::Cuda".to_owned()))
            }
            Device::Cuda(Some(ordinal)) => Ok(Gpu::open(ordinal)?),
            Device::Cuda(None) => Ok(Gpu::open(pe % Gpu::count()?.max(1))?),
        }
    }

    /// `cpu` or `cuda`.
    pub const fn kind(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::Cuda(_) => "cuda",
        }
    }
}

/// The type of outputs and gradients. Log-sum-exps are always float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Float32, as they are accumulated.
    #[default]
    Float32,
    /// The inputs' type: rounded once, when they are complete.
    AsInputs,
}

/// Options of a [`ContextParallel`](crate::ContextParallel), the same on all PEs of its team (but `threads`,
/// `before_stage` and the GPU's number).
#[derive(Clone, Debug)]
pub struct Options {
    /// Who holds which tokens.
    pub layout: Layout,
    /// Fetched stages a call.
    pub stages: Stages,
    /// Bound on symmetric and scratch memory a PE, in bytes.
    pub memory: Option<u64>,
    /// Compute threads of this PE. The same on all PEs where `memory` is given, since threads take scratch.
    pub threads: usize,
    /// Symmetric memory to reserve.
    pub heap: HeapSize,
    /// Gradient return slots a PE.
    pub return_slots: usize,
    /// What this PE computes on, of the same kind on all PEs.
    pub device: Device,
    /// The type of outputs and gradients.
    pub precision: Precision,
    /// Whether the same call gives the same bits each time. On a CPU it always does; on a GPU the backward then takes
    /// longer.
    pub deterministic: bool,
    /// Bytes of scratch that kernels of a GPU use at most; tiles are split to fit.
    pub workspace: usize,
    /// Bytes a second that gets are slowed down to: an emulated link, to see what a slower one would cost.
    pub get_bandwidth: Option<f64>,
    /// The turns that the PEs of this process take at the device they share; each has it for itself then.
    pub turns: Option<Turns>,
    /// Called ahead of each stage's tiles.
    pub before_stage: Option<StageHook>,
}

/// Is called on the compute stream ahead of each stage's tiles, with the direction and the stage. An error fails the
/// world in this PE's name. For drills: it may fail, sleep, or end the process.
#[derive(Clone)]
pub struct StageHook(pub Arc<Hook>);

/// What a [`StageHook`] calls.
pub type Hook = dyn Fn(Direction, usize) -> Result<(), String> + Send + Sync;

impl std::fmt::Debug for StageHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StageHook")
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layout: Layout::Zigzag,
            stages: Stages::Auto,
            memory: None,
            threads: 1,
            heap: HeapSize::default(),
            return_slots: 2,
            device: Device::Cpu,
            precision: Precision::Float32,
            deterministic: false,
            workspace: 1 << 30,
            get_bandwidth: None,
            turns: None,
            before_stage: None,
        }
    }
}

impl Options {
    /// The same with a heap that takes calls of `attention` and `dims` on `pes` PEs too, beside what it took before.
    /// All PEs come to the same size. Not collective.
    pub fn reserving(mut self, pes: usize, attention: &Attention, dims: &Dims) -> Result<Self, Error> {
        let (_, need) = plan(pes, attention, dims, &self)?;
        self.heap = self.heap.max(HeapSize::of(&need));
        Ok(self)
    }
}

/// Symmetric memory of one PE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapSize {
    /// Bytes of a publish slot, of which there are two: the K and V of one PE.
    pub publish: usize,
    /// Bytes of a gradient return slot: the largest contribution of a stage.
    pub contribution: usize,
}

impl HeapSize {
    /// What a call of that need takes.
    pub fn of(need: &Need) -> Self {
        Self {
            publish: usize::try_from(need.publish_slot).unwrap_or(usize::MAX),
            contribution: usize::try_from(need.contribution).unwrap_or(usize::MAX),
        }
    }

    /// What takes either.
    pub fn max(self, other: Self) -> Self {
        Self {
            publish: self.publish.max(other.publish),
            contribution: self.contribution.max(other.contribution),
        }
    }
}

//! Exact attention over sequences too long for one device.

mod attention;
mod context_parallel;
mod error;
mod options;
pub mod reference;
mod tensor;

pub use attention::Attention;
pub use context_parallel::{
    ContextParallel, Dims, Direction, Forward, Gradients, Output, Saved, Statistics, plan, shards,
};
pub use error::Error;
pub use longreach_device::{Kind, Label, Span};
pub use longreach_kernels::{DType, Data, View, ViewError, gemm_rate};
pub use longreach_plan::{
    Band, Bands, Documents, Edge, Layout, Mask, Need, PePlan, Plan, Shards,
};
pub use longreach_shmem::{Failure, FailureKind, Operation, Pe, Symmetric, Signals, Team, World, Error as ShmemError};
pub use options::{HeapSize, Options, Stages};
pub use tensor::{Elements, Tensor};

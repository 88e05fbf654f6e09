//! Exact attention over sequences too long for one device.
//!
//! Every processing element (PE) holds a part of the tokens and fetches the K/V rows that it needs from their owner's
//! symmetric memory with one-sided gets, on a communication stream of its own, while attention runs on the compute
//! stream; forward and backward.
//!
//! ```
#![doc = include_str!("../examples/attend.rs")]
//! ```
//!
//! [`Attention`] says what is computed, [`Options`] how; [`ContextParallel`] is made once by all PEs of a [`Team`]
//! and then called as often as needed. Collective calls say so. After an error the world is dead: all its PEs get the
//! same failure, and a new [`World`] is needed.

mod array;
mod attention;
mod context_parallel;
mod error;
mod gpu_tensor;
mod memory;
mod options;
pub mod reference;
mod sharding;
mod support;
mod tensor;
mod turns;

pub use attention::Attention;
pub use context_parallel::{
    ContextParallel, Dims, Direction, Forward, Gradients, Output, Saved, Statistics, plan, shards,
};
pub use error::Error;
pub use gpu_tensor::{GpuTensor, Input};
pub use longreach_device::cuda::Gpu;
pub use longreach_device::{Kind, Label, Span};
pub use longreach_kernels::{ConvertError, DType, Data, View, ViewError, gemm_rate};
pub use longreach_plan::{Band, Bands, Documents, Edge, Layout, Mask, Need, PePlan, Plan, Shards};
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
pub use longreach_shmem::nvshmem;
pub use longreach_shmem::{
    Error as ShmemError, Failure, FailureKind, MOST_PES, Operation, Pe, Piece, Rendezvous, Signals,
    Symmetric, Team, World,
};
pub use options::{Device, HeapSize, Hook, Options, Precision, StageHook, Stages};
pub use sharding::{shard, unshard};
pub use support::{SUPPORT, Support, support_table, supports};
pub use tensor::{Elements, Tensor};
pub use turns::Turns;

//! Attention on NVIDIA GPUs: cuDNN's kernels for tiles, and own kernels around them.
//!
//! The shape is that of the CPU kernels: [`forward`] adds tiles to a carried [`State`], [`finish`] divides once,
//! [`backward`] adds gradients into [`Sum`]s in float32. What differs: a [`Context`] is bound to a stream, on which everything is
//! queued; memory is the caller's ([`Memory`], [`View`]); scratch is asked for ([`forward_scratch`],
//! [`backward_scratch`]) and passed; and the backward takes the output where the CPU's takes delta, because cuDNN sums
//! `o do` itself. Elements are bf16 or f16. A band becomes calls whose mask is full, causal, bottom-right causal or a
//! window, in which every row sees a key; rows of keys that do not lie side by side are gathered first.
//!
//! Nothing of CUDA is needed to build this or to start a program that has it: libraries are looked for when they are
//! first asked for, and a missing one is an error that says so.

mod adder;
mod backward;
mod cache;
mod calls;
mod context;
pub mod cudnn;
mod forward;
mod held;
mod kernels;
mod link;
mod memory;
mod merge;
mod nvrtc;
mod operand;
mod rows;
mod state;
mod sum;

pub use adder::Adder;
pub use backward::{backward, backward_scratch};
pub use context::{Context, Settings};
pub use forward::{forward, forward_scratch};
pub use kernels::SOURCE;
pub use link::Link;
pub use memory::{Memory, View};
pub use merge::{cast, finish, reset};
pub use nvrtc::{Compiled, compile, compiler_version};
pub use state::State;
pub use sum::{Sum, settle};

/// Refuses element types and head dimensions that attention on a GPU does not take.
pub fn accepts(dtype: DType, head_dim: usize, value_dim: usize) -> Result<(), Error> {
    if dtype == DType::F32 {
        return Err(Error::Refused(
            "q, k and v of type f32: attention on a GPU takes bf16 and f16; cast them".to_owned(),
        ));
    }
    [head_dim, value_dim].into_iter().try_for_each(|dim| cudnn::check_dim(dim as i64))
}

use crate::error::Error;
use crate::tensor::DType;
use cudarc::driver::DriverError;

/// The driver's error as this crate's.
pub(crate) fn driver(error: DriverError) -> Error {
    Error::Call { library: "the CUDA driver", call: "call", reason: error.to_string() }
}

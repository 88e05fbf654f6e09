//! What can go wrong on a device.

use crate::stream::STACK;
use std::sync::Arc;

/// Why a stream stopped: the first error of its work, shared with all that came after it.
pub type Fault = Arc<dyn std::error::Error + Send + Sync>;

/// An error of the device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A loan or a filling was handed to a stream that it does not belong to.
    #[error(
        "`{operand}` is ordered on stream `{theirs}` and was given to work on stream `{ours}`: take it with `.on()` for stream `{ours}`"
    )]
    WrongStream {
        /// Name of the slot.
        operand: String,
        /// The stream that the loan belongs to.
        theirs: String,
        /// The stream that the work was meant for.
        ours: String,
    },
    /// A slot was to be refilled although a loan of it never came back.
    #[error(
        "slot `{slot}`, filled on stream `{producer}`, cannot be refilled: a loan to stream `{reader}` was never given back"
    )]
    StillLent {
        /// Name of the slot.
        slot: String,
        /// The stream that filled the slot.
        producer: String,
        /// A stream that still holds a loan.
        reader: String,
    },
    /// The worker thread of a stream could not be started.
    #[error("the worker of stream `{stream}`, with a stack of {STACK} bytes, could not be started: {reason}")]
    NoWorker {
        /// Name of the stream.
        stream: String,
        /// What the operating system said.
        reason: String,
    },
    /// There is no driver of NVIDIA GPUs.
    #[error(
        "no GPU can be used: the driver's library libcuda.so.1 was looked for where the system's loader looks and is not there; install NVIDIA's driver, or use the CPU"
    )]
    NoDriver,
    /// There is no such GPU.
    #[error("GPU {ordinal} was asked for and this process may use {count}: take one of 0..{count}")]
    NoGpu {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU has not as much memory.
    #[error(
        "{bytes} bytes of GPU {ordinal}'s memory were asked for, {free} of its {total} are free: use more PEs or GPUs, more stages, or a smaller call"
    )]
    NoGpuMemory {
        /// The GPU.
        ordinal: usize,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes that it has.
        total: usize,
    },
    /// The driver refused a call, or says that earlier work failed.
    #[error("the CUDA driver's {call} failed: {reason}")]
    Driver {
        /// The function.
        call: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// Work of a stream panicked.
    #[error("work on stream `{stream}` panicked: {message}")]
    Panicked {
        /// Name of the stream.
        stream: String,
        /// The panic's message.
        message: String,
    },
    /// The stream, or one that it waited for, failed earlier.
    #[error("{0}")]
    Fault(Fault),
}

impl Error {
    /// The error as what stops a stream.
    pub fn into_fault(self) -> Fault {
        match self {
            Error::Fault(fault) => fault,
            other => Arc::new(other),
        }
    }
}

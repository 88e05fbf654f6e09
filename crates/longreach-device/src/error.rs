//! What can go wrong on a device.

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
    #[error("the worker of stream `{stream}`, with a stack of 2097152 bytes, could not be started: {reason}")]
    NoWorker {
        /// Name of the stream.
        stream: String,
        /// What the operating system said.
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

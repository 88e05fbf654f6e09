//! What can go wrong on a GPU.

use super::cudnn;

/// An error of a GPU's kernels.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// cuDNN's.
    #[error("{0}")]
    Cudnn(#[from] cudnn::Error),
    /// A library that kernels are compiled with is not on this machine.
    #[error("{library} was not found where the system's loader looks; {remedy}")]
    Absent {
        /// Its file name.
        library: &'static str,
        /// What installs it.
        remedy: &'static str,
    },
    /// A kernel's source was refused.
    #[error("{what} could not be compiled for {arch}: {log}")]
    Compile {
        /// The source.
        what: &'static str,
        /// The architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A call of the driver failed.
    #[error("the CUDA driver refused {call}: {reason}")]
    Driver {
        /// What was asked of it.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Scratch memory that is smaller than what was asked for.
    #[error("{given} bytes of scratch were given and {needed} are needed: ask `scratch` first")]
    Scratch {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
    },
}

/// The driver's answer, with what was asked.
pub(super) fn driver<T>(
    call: &'static str,
    outcome: Result<T, cudarc::driver::DriverError>,
) -> Result<T, Error> {
    outcome.map_err(|error| Error::Driver { call, reason: error.to_string() })
}

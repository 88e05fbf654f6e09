//! What can go wrong in a call.

use longreach_kernels as kernels;
use longreach_plan as plan;
use longreach_shmem as shmem;

/// An error of context-parallel attention.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The world failed, or symmetric memory could not be had.
    #[error("{0}")]
    Shmem(shmem::Error),
    /// Mask, layout and lengths make no plan.
    #[error("{0}")]
    Plan(#[from] plan::Error),
    /// A kernel refused its operands.
    #[error("{0}")]
    Kernel(#[from] kernels::Error),
    /// A view that its elements do not fill.
    #[error("{0}")]
    View(#[from] kernels::ViewError),
    /// An argument that does not fit the call.
    #[error("{0}")]
    Input(String),
    /// The heap that was reserved is too small for the call.
    #[error(
        "the call needs {needed} bytes for {what} and {reserved} were reserved: make ContextParallel with HeapSize::of this call"
    )]
    HeapTooSmall {
        /// Which part of the heap.
        what: &'static str,
        /// Bytes that the call needs.
        needed: usize,
        /// Bytes that the heap has for it.
        reserved: usize,
    },
    /// Memory that a call needs could not be had.
    #[error(
        "{bytes} bytes for {what} could not be allocated: use more PEs, more stages or shorter sequences"
    )]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// Threads could not be started.
    #[error("{threads} compute threads could not be started: {reason}")]
    NoThreads {
        /// How many were asked for.
        threads: usize,
        /// What the thread pool said.
        reason: String,
    },
}

impl From<shmem::Error> for Error {
    fn from(error: shmem::Error) -> Self {
        match error {
            shmem::Error::Device(error) => error.into(),
            other => Error::Shmem(other),
        }
    }
}

impl From<longreach_device::Error> for Error {
    fn from(error: longreach_device::Error) -> Self {
        // A stream carries errors of its work as faults: give them back as what they were.
        if let longreach_device::Error::Fault(fault) = &error
            && let Some(own) = fault.downcast_ref::<Error>()
        {
            return own.clone();
        }
        Error::Shmem(shmem::Error::from(error))
    }
}

impl Error {
    /// The error as what stops a stream.
    pub(crate) fn into_fault(self) -> longreach_device::Fault {
        std::sync::Arc::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_kernels::{Data, View};

    #[test]
    fn a_view_that_cannot_be_made_is_an_error_of_this_crate() {
        fn heads(data: &[f32]) -> Result<usize, Error> {
            Ok(View::contiguous(Data::F32(data), [1, 2, 3, 4])?.shape()[2])
        }
        assert_eq!(heads(&[0.0; 24]).unwrap(), 3);
        let error = heads(&[0.0; 23]).unwrap_err();
        assert!(matches!(error, Error::View(_)));
        assert!(error.to_string().ends_with("needs 24 elements, the slice has 23"), "{error}");
    }
}

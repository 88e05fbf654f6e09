//! The crates' errors as Python's exceptions, with their own words.

use longreach::{Failure, ShmemError};
use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

create_exception!(longreach, Error, PyRuntimeError, "A request that longreach refuses, or that failed.");
create_exception!(
    longreach,
    PeerFailed,
    Error,
    "Another rank died, stalled, failed, left, or refused a call; the group's world is dead.\n\n\
     Attributes: kind (died, stalled, failed, left, refused or deadlocked), rank (in the group), operation, stage, \
     epoch and waited_seconds."
);
create_exception!(
    longreach,
    HeapTooSmall,
    Error,
    "A call does not fit into the symmetric memory that was reserved; raised on every rank, before any traffic.\n\n\
     Attribute: heap, the bytes that `heap=` must be for it."
);

/// An error of this module itself.
pub fn refused(message: impl Into<String>) -> PyErr {
    Error::new_err(message.into())
}

/// `error` as rank `me` of its world sees it.
pub fn raised(py: Python<'_>, me: usize, error: longreach::Error) -> PyErr {
    match &error {
        longreach::Error::Shmem(error) => raised_shmem(py, me, error),
        other => refused(other.to_string()),
    }
}

/// As [`raised`], of a world.
pub fn raised_shmem(py: Python<'_>, me: usize, error: &ShmemError) -> PyErr {
    match error {
        ShmemError::Failed(failure) if failure.pe != me => {
            let raised = PeerFailed::new_err(failure.to_string());
            match describe(py, &raised, failure) {
                Ok(()) => raised,
                Err(error) => error,
            }
        }
        other => refused(other.to_string()),
    }
}

fn describe(py: Python<'_>, raised: &PyErr, failure: &Failure) -> PyResult<()> {
    let value = raised.value(py);
    value.setattr("kind", failure.kind.name())?;
    value.setattr("rank", failure.pe)?;
    value.setattr("operation", failure.operation.name)?;
    value.setattr("stage", failure.operation.stage.unwrap_or(0))?;
    value.setattr("epoch", failure.operation.epoch)?;
    value.setattr("waited_seconds", failure.waited.as_secs_f64())
}

/// The exception of a call that needs a heap of `heap` bytes.
pub fn heap_too_small(py: Python<'_>, message: String, heap: u64) -> PyErr {
    let raised = HeapTooSmall::new_err(message);
    match raised.value(py).setattr("heap", heap) {
        Ok(()) => raised,
        Err(error) => error,
    }
}

//! Points of a stream's time on the GPU.

use super::driver;
use crate::error::Error;
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use std::sync::Arc;

/// Events tell the time, and who waits for one sleeps.
pub(super) const TIMED: CUevent_flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC;

/// A point of a stream's time on a GPU, recorded.
#[derive(Clone, Debug)]
pub struct Event(pub(super) Arc<CudaEvent>);

impl Event {
    /// Whether the GPU has come there. An error is found by who waits.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    /// Whether the GPU has come there. Fails where earlier work has.
    pub fn query(&self) -> Result<bool, Error> {
        self.0.try_is_complete().map_err(driver("cuEventQuery"))
    }

    /// Blocks the calling thread until the GPU has come there.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.0.synchronize().map_err(driver("cuEventSynchronize"))
    }

    /// Seconds from this event to `later`; waits for both.
    pub(crate) fn seconds_to(&self, later: &Event) -> Result<f64, Error> {
        let milliseconds = self.0.elapsed_ms(&later.0).map_err(driver("cuEventElapsedTime"))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

//! Points of a stream's time on the GPU.

use super::{Gpu, driver};
use crate::error::Error;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use std::sync::Arc;

/// Events tell the time, and who waits for one sleeps.
pub(super) const TIMED: CUevent_flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC;

/// A point of a stream's time on a GPU, recorded.
#[derive(Clone, Debug)]
pub struct Event(Arc<Recorded>);

#[derive(Debug)]
struct Recorded {
    gpu: Arc<Gpu>,
    event: Option<CudaEvent>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // Who waits for it on the GPU has been ordered behind what was recorded: the event may be recorded anew.
        if let Some(event) = self.event.take() {
            self.gpu.events().push(event);
        }
    }
}

impl Event {
    /// The point behind all that `stream` of `gpu` has been given.
    pub(super) fn record(gpu: &Arc<Gpu>, stream: &CudaStream) -> Result<Self, Error> {
        // Making events costs more than using them again.
        let free = gpu.events().pop();
        let event = match free {
            Some(event) => event,
            None => gpu.context().new_event(Some(TIMED)).map_err(driver("cuEventCreate"))?,
        };
        event.record(stream).map_err(driver("cuEventRecord"))?;
        Ok(Self(Arc::new(Recorded { gpu: gpu.clone(), event: Some(event) })))
    }

    pub(super) fn raw(&self) -> Result<&CudaEvent, Error> {
        let missing = || Error::Driver { call: "cuEventQuery", reason: "the event is gone".to_owned() };
        self.0.event.as_ref().ok_or_else(missing)
    }

    /// Whether the GPU has come there. An error is found by who waits.
    pub fn is_complete(&self) -> bool {
        self.0.event.as_ref().is_some_and(CudaEvent::is_complete)
    }

    /// Whether the GPU has come there. Fails where earlier work has.
    pub fn query(&self) -> Result<bool, Error> {
        self.raw()?.try_is_complete().map_err(driver("cuEventQuery"))
    }

    /// Blocks the calling thread until the GPU has come there.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.raw()?.synchronize().map_err(driver("cuEventSynchronize"))
    }

    /// Seconds from this event to `later`; waits for both.
    pub fn seconds_to(&self, later: &Event) -> Result<f64, Error> {
        seconds(self.raw()?, later.raw()?)
    }
}

/// Seconds from one event to another; waits for both.
pub(super) fn seconds(from: &CudaEvent, to: &CudaEvent) -> Result<f64, Error> {
    let milliseconds = from.elapsed_ms(to).map_err(driver("cuEventElapsedTime"))?;
    Ok(f64::from(milliseconds) / 1e3)
}

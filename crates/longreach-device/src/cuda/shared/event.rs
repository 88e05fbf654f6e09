//! Events that streams of other processes wait for.

use super::super::{Gpu, Stream, driver};
use crate::error::Error;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// What names an event to another process of the machine.
pub type EventHandle = [u8; 64];

/// An event of one process that streams of several wait for. It stands for the last point that was recorded: who waits
/// is ordered behind what the recorder's stream had been given then.
#[derive(Debug)]
pub struct SharedEvent {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: an event is the context's, and the driver's calls on it may come from any thread.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// A new event of this process.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, Error> {
        gpu.make_current()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: the event is written to where it is asked for.
        unsafe { sys::cuEventCreate(&mut event, flags) }.result().map_err(driver("cuEventCreate"))?;
        Ok(Self { gpu: gpu.clone(), event })
    }

    /// What another process [opens](SharedEvent::open).
    pub fn handle(&self) -> Result<EventHandle, Error> {
        self.gpu.make_current()?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: the event is alive and was made for other processes.
        unsafe { sys::cuIpcGetEventHandle(&mut handle, self.event) }
            .result()
            .map_err(driver("cuIpcGetEventHandle"))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// The event that another process has made, of a GPU that both see.
    pub fn open(gpu: &Arc<Gpu>, handle: &EventHandle) -> Result<Self, Error> {
        gpu.make_current()?;
        let handle = sys::CUipcEventHandle { reserved: handle.map(|byte| byte as _) };
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver refuses a handle that is none.
        unsafe { sys::cuIpcOpenEventHandle(&mut event, handle) }
            .result()
            .map_err(driver("cuIpcOpenEventHandle"))?;
        Ok(Self { gpu: gpu.clone(), event })
    }

    /// Makes the event stand for what `stream` has been given so far.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        self.gpu.make_current()?;
        // SAFETY: both are alive and of this context.
        unsafe { result::event::record(self.event, stream.raw().cu_stream()) }
            .map_err(driver("cuEventRecord"))
    }

    /// Orders what `stream` will be given behind the event.
    pub fn order(&self, stream: &Stream) -> Result<(), Error> {
        self.gpu.make_current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(stream.raw().cu_stream(), self.event, flags) }
            .map_err(driver("cuStreamWaitEvent"))
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: nobody in this process has the event any more; the driver keeps it until waits for it are over.
            let destroyed = unsafe { result::event::destroy(self.event) };
            self.gpu.context().record_err(destroyed);
        }
    }
}

//! Streams of a GPU, as the worker of a [`crate::Stream`] uses them.

use super::{Event, Gpu, Memory, driver};
use crate::error::Error;
use cudarc::driver::{CudaStream, result};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A stream of a GPU. What it is given runs there in order; no other stream is ordered with it but by events.
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Stream {
    /// A new stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, Error> {
        let stream = gpu.context().new_stream().map_err(driver("cuStreamCreate"))?;
        Ok(Self { gpu: gpu.clone(), stream, kept: Mutex::default() })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The stream, for libraries that take one.
    pub fn raw(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The point behind all that the stream has been given.
    pub fn record(&self) -> Result<Event, Error> {
        Event::record(&self.gpu, &self.stream)
    }

    /// Orders what the stream will be given behind `event`, of whatever stream.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.stream.wait(event.raw()?).map_err(driver("cuStreamWaitEvent"))
    }

    /// Keeps `what` until the GPU has done the work that is being queued now.
    pub fn keep(&self, what: impl Any + Send) {
        self.kept().push(Box::new(what));
    }

    pub(crate) fn take_kept(&self) -> Vec<Box<dyn Any + Send>> {
        std::mem::take(&mut *self.kept())
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Any + Send>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the stream a copy of `bytes` bytes between addresses of GPUs.
    ///
    /// # Safety
    /// Both are memory of that size that stays valid until the copy is done, and the stream is ordered with all who write
    /// the one or use the other.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.gpu.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }
            .map_err(driver("cuMemcpyDtoDAsync"))
    }

    /// Gives the stream a copy of `from` into `to`; `from` may be changed when this returns. Fails when they differ in
    /// length.
    pub fn upload(&self, from: &[u8], to: &mut Memory) -> Result<(), Error> {
        same_length(from.len(), to.len())?;
        if from.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        // SAFETY: `to` has as many bytes; a copy from pageable memory returns when the bytes have been read.
        unsafe { result::memcpy_htod_async(to.address(), from, self.stream.cu_stream()) }
            .map_err(driver("cuMemcpyHtoDAsync"))
    }

    /// Copies `from` into `into`, behind all that the stream has been given; returns when it is there.
    pub fn download(&self, from: &Memory, into: &mut [u8]) -> Result<(), Error> {
        same_length(from.len(), into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        self.gpu.make_current()?;
        // SAFETY: `from` has as many bytes, and both outlive the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(into, from.address(), self.stream.cu_stream()) }
            .map_err(driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    /// Blocks the calling thread until the GPU has done all that the stream has been given.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.stream.synchronize().map_err(driver("cuStreamSynchronize"))
    }
}

fn same_length(from: usize, to: usize) -> Result<(), Error> {
    if from == to {
        return Ok(());
    }
    let reason = format!("{from} bytes were to be copied to {to}: both must have the same length");
    Err(Error::Driver { call: "copy", reason })
}

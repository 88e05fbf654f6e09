//! GPUs of this machine.

use super::event::{TIMED, seconds};
use super::{Event, driver};
use crate::error::Error;
use cudarc::driver::{CudaContext, CudaEvent, result, sys};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A GPU: its primary context, and its memory that is not in use at the moment.
pub struct Gpu {
    context: Arc<CudaContext>,
    /// Addresses by size.
    free: Mutex<BTreeMap<usize, Vec<u64>>>,
    /// Events that nobody uses.
    events: Mutex<Vec<CudaEvent>>,
    /// A point of the GPU's time and of the host's, which are the same.
    base: (CudaEvent, Instant),
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Gpu").field(&self.ordinal()).finish()
    }
}

/// Those of this process that have been opened.
static OPEN: Mutex<BTreeMap<usize, Arc<Gpu>>> = Mutex::new(BTreeMap::new());

impl Gpu {
    /// GPUs of this machine that this process may use. Fails where the driver is absent or refuses.
    pub fn count() -> Result<usize, Error> {
        // SAFETY: looks for a library by name.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        result::init().map_err(driver("cuInit"))?;
        let count = result::device::get_count().map_err(driver("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU of that number, the same handle each time. Fails where there is none.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, Error> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::NoGpu { ordinal, count });
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.get(&ordinal) {
            return Ok(gpu.clone());
        }
        let context = CudaContext::new(ordinal).map_err(driver("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: nothing here relies on it: the order of all work is that of this crate's streams and events.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver("cuStreamCreate"))?;
        let event = stream.record_event(Some(TIMED)).map_err(driver("cuEventRecord"))?;
        event.synchronize().map_err(driver("cuEventSynchronize"))?;
        let base = (event, Instant::now());
        let gpu = Arc::new(Self { context, free: Mutex::default(), events: Mutex::default(), base });
        open.insert(ordinal, gpu.clone());
        Ok(gpu)
    }

    /// The GPU's number.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// What its maker calls it.
    pub fn name(&self) -> Result<String, Error> {
        self.context.name().map_err(driver("cuDeviceGetName"))
    }

    /// Bytes of its memory that are free, and all.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.context.mem_get_info().map_err(driver("cuMemGetInfo"))
    }

    /// The context, for libraries that take one.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes the GPU the calling thread's.
    pub fn make_current(&self) -> Result<(), Error> {
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent"))
    }

    /// When `event` was, as the host's clock has it: seconds from `origin`. Waits for it.
    pub(crate) fn seconds(&self, origin: Instant, event: &Event) -> Result<f64, Error> {
        let (base, instant) = &self.base;
        let before = origin.saturating_duration_since(*instant).as_secs_f64();
        let after = instant.saturating_duration_since(origin).as_secs_f64();
        Ok(seconds(base, event.raw()?)? + after - before)
    }

    /// Memory of at least that size, with the size that it has; its content is whatever is there.
    pub(super) fn take(&self, bytes: usize) -> Result<(u64, usize), Error> {
        let room = rounded(bytes).ok_or_else(|| self.shortage(bytes))?;
        if let Some(address) = self.free().get_mut(&room).and_then(Vec::pop) {
            return Ok((address, room));
        }
        self.make_current()?;
        // SAFETY: the memory belongs to whoever takes the address.
        let allocate = || unsafe { result::malloc_sync(room) };
        let address = allocate().or_else(|_| {
            self.trim();
            allocate()
        });
        Ok((address.map_err(|_| self.shortage(bytes))?, room))
    }

    /// Takes back what [`Gpu::take`] gave.
    pub(super) fn put_back(&self, address: u64, room: usize) {
        self.free().entry(room).or_default().push(address);
    }

    /// Gives the driver all memory that is not in use.
    pub fn trim(&self) {
        let free = std::mem::take(&mut *self.free());
        if self.make_current().is_err() {
            return;
        }
        for address in free.into_values().flatten() {
            // SAFETY: it came from `malloc_sync` in this context, and whoever had it has given it back.
            let freed = unsafe { result::free_sync(address) };
            self.context.record_err(freed);
        }
    }

    pub(super) fn events(&self) -> std::sync::MutexGuard<'_, Vec<CudaEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Vec<u64>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shortage(&self, bytes: usize) -> Error {
        let (free, total) = self.memory().unwrap_or((0, 0));
        Error::NoGpuMemory { ordinal: self.ordinal(), bytes, free, total }
    }
}

/// Sizes that are handed out: few, so that what is given back fits what is asked for next.
fn rounded(bytes: usize) -> Option<usize> {
    const SMALL: usize = 1 << 20;
    const LARGE: usize = 2 << 20;
    match bytes {
        0..SMALL => Some(bytes.max(256).next_power_of_two()),
        _ => bytes.checked_next_multiple_of(LARGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!([0, 1, 257, 1 << 19].map(rounded), [256, 256, 512, 1 << 19].map(Some));
        assert_eq!(rounded((1 << 20) + 1), Some(2 << 20));
        assert_eq!(rounded(5 << 20), Some(6 << 20));
        assert_eq!(rounded(usize::MAX), None);
    }
}

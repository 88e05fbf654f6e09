//! Memory of a GPU.

use super::{Gpu, driver};
use crate::error::Error;
use cudarc::driver::result;
use std::sync::Arc;

/// A piece of a GPU's memory, from a 256-byte boundary on. What is in it at first is not defined.
///
/// Work that is queued on a stream keeps the memory it works on until the GPU has done it; so when the memory is dropped
/// nobody uses it any more, and it is kept for the next who asks.
#[derive(Debug)]
pub struct Memory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
    room: usize,
}

impl Memory {
    /// `bytes` bytes of `gpu`. Fails where it has not as many.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, Error> {
        let (address, room) = gpu.take(bytes)?;
        Ok(Self { gpu: gpu.clone(), address, bytes, room })
    }

    /// As [`Memory::new`], of zeros, which are there when this returns.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, Error> {
        let memory = Self::new(gpu, bytes)?;
        gpu.make_current()?;
        // SAFETY: the memory has as many bytes, and nobody else knows of it.
        unsafe { result::memset_d8_sync(memory.address, 0, memory.room) }.map_err(driver("cuMemsetD8"))?;
        gpu.context().default_stream().synchronize().map_err(driver("cuStreamSynchronize"))?;
        Ok(memory)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.gpu.put_back(self.address, self.room);
    }
}

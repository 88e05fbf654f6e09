//! An emulated link: transfers on a stream that take as long as on a slower one.

use super::driver;
use super::kernels::Kernels;
use super::memory::Memory;
use crate::error::Error;
use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg};
use std::sync::Arc;

/// Slows the transfers of a stream down to a rate; used by one thread at a time.
pub struct Link {
    stream: Arc<CudaStream>,
    kernels: Kernels,
    /// When a transfer began, by the GPU's clock.
    began: Memory,
    rate: f64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// One thread: the GPU's other work is not kept from running.
const ALONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

impl Link {
    /// A link of `rate` bytes a second on `stream`; `began` is 8 bytes that nobody else uses. Fails where NVRTC is absent.
    pub fn new(stream: &Arc<CudaStream>, rate: f64, began: Memory) -> Result<Self, Error> {
        if began.bytes() < 8 || rate.is_nan() || rate <= 0.0 {
            return Err(Error::Refused(format!("a link of {rate} bytes a second: it must be more than 0")));
        }
        Ok(Self { stream: stream.clone(), kernels: Kernels::new(stream)?, began, rate })
    }

    /// Queues the beginning of a transfer.
    pub fn begin(&self) -> Result<(), Error> {
        self.stream.context().bind_to_thread().map_err(driver)?;
        let address = self.began.address();
        let mut launch = self.kernels.start("stamp");
        launch.arg(&address);
        // SAFETY: the argument is the kernel's; the memory is valid, as its maker promised.
        unsafe { launch.launch(ALONE) }.map(drop).map_err(driver)
    }

    /// Queues the end of the transfer of `bytes` bytes that began last: when it would have ended on the link.
    pub fn end(&self, bytes: u64) -> Result<(), Error> {
        self.stream.context().bind_to_thread().map_err(driver)?;
        let (address, time) = (self.began.address(), (bytes as f64 / self.rate * 1e9) as u64);
        let mut launch = self.kernels.start("pace");
        launch.arg(&address).arg(&time);
        // SAFETY: as above.
        unsafe { launch.launch(ALONE) }.map(drop).map_err(driver)
    }
}

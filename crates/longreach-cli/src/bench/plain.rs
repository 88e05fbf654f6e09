//! Memory to copy from, of the kind that a transport's symmetric memory is.

use crate::args::Transport;
use crate::error::Error;
use memmap2::MmapMut;

/// Bytes of this process's own.
pub enum Plain {
    /// From the allocator, as with threads.
    Heap(Vec<u8>),
    /// A mapped memory file, as with processes.
    Mapped(MmapMut),
}

impl Plain {
    /// `len` bytes that have been written once, so that their pages are there.
    pub fn new(transport: Transport, len: usize) -> Result<Self, Error> {
        let mut plain = match transport {
            Transport::Threads => Self::Heap(vec![0; len]),
            Transport::Processes => Self::Mapped(mapped(len)?),
        };
        plain.bytes_mut().fill(3);
        Ok(plain)
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

#[cfg(target_os = "linux")]
fn mapped(len: usize) -> Result<MmapMut, Error> {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let failed = |error: std::io::Error| Error::Run(format!("{len} bytes of shared memory: {error}"));
    let file = memfd_create("longreach bench", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    ftruncate(&file, len as u64).map_err(|errno| failed(errno.into()))?;
    // SAFETY: the file is this function's own, nobody else has it or makes it shorter.
    unsafe { MmapMut::map_mut(&file) }.map_err(failed)
}

#[cfg(not(target_os = "linux"))]
fn mapped(_len: usize) -> Result<MmapMut, Error> {
    Err(Error::bad("--transport", "processes", "needs Linux: use --transport threads"))
}

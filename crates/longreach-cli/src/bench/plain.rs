//! Memory to copy from, of the kind that a transport's symmetric memory is.

use crate::args::Transport;
use crate::error::Error;
use memmap2::MmapMut;

/// Symmetric memory of threads starts at multiples of this many bytes; that of processes at a page's start.
const ALIGNMENT: usize = 64;

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
            Transport::Threads => Self::Heap(vec![0; len + ALIGNMENT]),
            Transport::Processes | Transport::Nvshmem => Self::Mapped(mapped(len)?),
        };
        match &mut plain {
            Self::Heap(bytes) => bytes.fill(3),
            Self::Mapped(bytes) => bytes.fill(3),
        }
        Ok(plain)
    }

    /// The bytes, from the first that is aligned as symmetric memory is: at least as many as were asked for.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => &bytes[bytes.as_ptr().align_offset(ALIGNMENT)..],
            Self::Mapped(bytes) => bytes,
        }
    }
}

#[cfg(target_os = "linux")]
fn mapped(len: usize) -> Result<MmapMut, Error> {
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
    let failed = |error: std::io::Error| Error::Run(format!("{len} bytes of shared memory: {error}"));
    let file = memfd_create("longreach bench", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    rustix::io::retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len as u64))
        .map_err(|errno| failed(errno.into()))?;
    // SAFETY: the file is this function's own, nobody else has it or makes it shorter.
    unsafe { MmapMut::map_mut(&file) }.map_err(failed)
}

#[cfg(not(target_os = "linux"))]
fn mapped(_len: usize) -> Result<MmapMut, Error> {
    Err(Error::bad("--transport", "processes", "needs Linux: use --transport threads"))
}

/// Keeps this process from huge pages, which the system may give to the one side of a comparison and not to the other.
#[cfg(target_os = "linux")]
pub fn small_pages() -> Result<(), Error> {
    rustix::thread::disable_transparent_huge_pages(true).map_err(|errno| {
        Error::Run(format!("huge pages cannot be turned off: {}", std::io::Error::from(errno)))
    })
}

/// Other systems are taken as they are.
#[cfg(not(target_os = "linux"))]
pub fn small_pages() -> Result<(), Error> {
    Ok(())
}

/// Bytes of a page; 0 where the system does not tell.
pub fn page_bytes() -> usize {
    #[cfg(unix)]
    return rustix::param::page_size();
    #[cfg(not(unix))]
    0
}

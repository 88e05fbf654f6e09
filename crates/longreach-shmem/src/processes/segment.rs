//! Memory files: anonymous, of a fixed size, mapped by every process that is given their descriptor.

use crate::limits::available_memory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// A memory file, mapped whole. The mapping goes when this is dropped; the pages go with the last mapping.
pub(super) struct Segment {
    start: NonNull<u8>,
    /// Bytes that are mapped, at least one.
    mapped: usize,
    file: OwnedFd,
}

// SAFETY: a mapping is of the process, not of a thread; what its bytes are used for is up to who has the address.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// What keeps a file's size as it is, so that a mapped page is always there.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Segment {
    /// A new file of `len` bytes, all zeros, whose pages are reserved: using them cannot fail later.
    pub(super) fn new(len: usize) -> Result<Self, Errno> {
        // A file of no bytes cannot be mapped.
        let mapped = len.max(1);
        let file = rustix::fs::memfd_create("longreach", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, mapped as u64)?;
        if available_memory().is_some_and(|available| mapped as u64 > available) {
            return Err(Errno::NOMEM);
        }
        // A call may be interrupted when it reserves much; what is reserved already stays so.
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mapped as u64)
        })?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Self::map(file, mapped)
    }

    /// Maps the file that another process has made, which must have `len` bytes and keep them.
    pub(super) fn open(file: OwnedFd, len: usize) -> Result<Self, Errno> {
        let mapped = len.max(1);
        let size = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(size) != Ok(mapped as u64) || !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(Errno::INVAL);
        }
        Self::map(file, mapped)
    }

    fn map(file: OwnedFd, mapped: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so no other mapping is touched.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped, protection, MapFlags::SHARED, &file, 0)
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, mapped, file })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.mapped
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; who has the address has a handle of this as well.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}

//! Plain copies, for ThreadSanitizer: bytes that two PEs touch at the same time are a race that it reports.

/// # Safety
/// As [`super::read`], and nobody may write those bytes meanwhile.
pub(super) unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// # Safety
/// As [`super::write`], and nobody may touch those bytes meanwhile.
pub(super) unsafe fn write(into: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
}

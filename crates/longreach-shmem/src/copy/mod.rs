//! Copies between symmetric memory, which any PE may touch at any time, and memory of one's own.
//!
//! Order comes from signals alone; where a caller's protocol is wrong a copy gives stale or mixed bytes, and never
//! undefined behaviour: symmetric bytes are touched as relaxed atomics (`portable`), or by instructions that the
//! compiler does not look into (`x86_64`). Built with `--cfg plain_copies` they are plain copies instead, so that
//! ThreadSanitizer sees what signals fail to order.

#[cfg(not(plain_copies))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri))))]
mod x86_64;

use std::sync::atomic::Ordering;

/// Copies `into.len()` bytes from `from`.
///
/// # Safety
/// `from` must be valid for reads of that length for the whole call, and everybody else must touch those bytes
/// through this module only.
#[cfg(not(plain_copies))]
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if x86_64::pays(into.len()) {
        // SAFETY: the caller's promise.
        return unsafe { x86_64::copy(from, into.as_mut_ptr(), into.len()) };
    }
    // SAFETY: the caller's promise.
    unsafe { portable::read(from, into) }
}

/// Copies all of `from` to `into`.
///
/// # Safety
/// `into` must be valid for writes of that length for the whole call, and everybody else must touch those bytes
/// through this module only.
#[cfg(not(plain_copies))]
pub(crate) unsafe fn write(into: *mut u8, from: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if x86_64::pays(from.len()) {
        // SAFETY: the caller's promise.
        return unsafe { x86_64::copy(from.as_ptr(), into, from.len()) };
    }
    // SAFETY: the caller's promise.
    unsafe { portable::write(into, from) }
}

/// # Safety
/// As above, and nobody may write those bytes meanwhile.
#[cfg(plain_copies)]
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
}

/// # Safety
/// As above, and nobody may touch those bytes meanwhile.
#[cfg(plain_copies)]
pub(crate) unsafe fn write(into: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
}

/// Orders the copies made before it ahead of those made after it.
pub(crate) fn fence() {
    // SeqCst: the copies are relaxed; whoever sees a later one and fences as well sees the earlier ones.
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    type Read = unsafe fn(*const u8, &mut [u8]);
    type Write = unsafe fn(*mut u8, &[u8]);

    /// All alignments, and lengths up to beyond those that another way is taken for.
    fn exact(read: Read, write: Write) {
        let source: Vec<u8> = (0..1200).map(|i| (i % 251) as u8).collect();
        for offset in 0..9 {
            for len in (0..40).chain([255, 256, 257, 1023, 1100]) {
                let mut shared = vec![0xAAu8; 1200];
                // SAFETY: both ranges lie inside the vectors, which nobody else has.
                unsafe { write(shared.as_mut_ptr().add(offset), &source[3..3 + len]) };
                assert_eq!(shared[offset..offset + len], source[3..3 + len]);
                assert!(shared[..offset].iter().chain(&shared[offset + len..]).all(|&byte| byte == 0xAA));
                let mut back = vec![0x55u8; len + 2];
                // SAFETY: as above.
                unsafe { read(shared.as_ptr().add(offset), &mut back[1..=len]) };
                assert_eq!(back[1..=len], source[3..3 + len]);
                assert_eq!((back[0], back[len + 1]), (0x55, 0x55));
            }
        }
    }

    #[test]
    fn copies_are_of_exactly_their_bytes() {
        exact(super::read, super::write);
    }

    #[cfg(not(plain_copies))]
    #[test]
    fn portable_copies_are_of_exactly_their_bytes() {
        exact(super::portable::read, super::portable::write);
    }

    #[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri))))]
    #[test]
    fn copies_by_one_instruction_are_of_exactly_their_bytes() {
        use super::x86_64::copy;
        // SAFETY: the promises of `exact`.
        exact(
            |from, into| unsafe { copy(from, into.as_mut_ptr(), into.len()) },
            |into, from| unsafe { copy(from.as_ptr(), into, from.len()) },
        );
    }
}

//! Copies between symmetric memory, which any PE may touch at any time, and memory of one's own.
//!
//! Symmetric bytes are read and written as relaxed atomics. Order comes from signals alone; where a caller's
//! protocol is wrong a copy gives stale or mixed bytes, and never undefined behaviour. Built with
//! `--cfg plain_copies` they are plain copies instead, so that ThreadSanitizer sees what signals fail to order.

use std::sync::atomic::Ordering;
#[cfg(not(plain_copies))]
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Copies `into.len()` bytes from `from`.
///
/// # Safety
/// `from` must be valid for reads of that length for the whole call, and everybody else must touch those bytes
/// through this module only.
#[cfg(not(plain_copies))]
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) {
    let (head, words) = split(from, into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words * 8);
    // SAFETY: `from` is valid for the whole length (the caller's promise), `split` makes the middle 8-aligned, and
    // atomics may alias each other. Relaxed: signals order the copies, see the module.
    unsafe {
        for (i, byte) in first.iter_mut().enumerate() {
            *byte = (*from.add(i).cast::<AtomicU8>()).load(Ordering::Relaxed);
        }
        let base = from.add(head).cast::<AtomicU64>();
        for (i, word) in middle.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(*base.add(i)).load(Ordering::Relaxed).to_ne_bytes());
        }
        let tail = from.add(head + words * 8);
        for (i, byte) in last.iter_mut().enumerate() {
            *byte = (*tail.add(i).cast::<AtomicU8>()).load(Ordering::Relaxed);
        }
    }
}

/// Copies all of `from` to `into`.
///
/// # Safety
/// `into` must be valid for writes of that length for the whole call, and everybody else must touch those bytes
/// through this module only.
#[cfg(not(plain_copies))]
pub(crate) unsafe fn write(into: *mut u8, from: &[u8]) {
    let (head, words) = split(into, from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words * 8);
    // SAFETY: as in `read`. Relaxed: as in `read`.
    unsafe {
        for (i, byte) in first.iter().enumerate() {
            (*into.add(i).cast::<AtomicU8>()).store(*byte, Ordering::Relaxed);
        }
        let base = into.add(head).cast::<AtomicU64>();
        for (i, word) in middle.as_chunks::<8>().0.iter().enumerate() {
            (*base.add(i)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let tail = into.add(head + words * 8);
        for (i, byte) in last.iter().enumerate() {
            (*tail.add(i).cast::<AtomicU8>()).store(*byte, Ordering::Relaxed);
        }
    }
}

/// Bytes before the first 8-aligned one, and whole words from there.
#[cfg(not(plain_copies))]
fn split(pointer: *const u8, len: usize) -> (usize, usize) {
    let head = pointer.align_offset(8).min(len);
    (head, (len - head) / 8)
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
    #[test]
    fn all_alignments_and_lengths_copy_exactly_their_bytes() {
        let source: Vec<u8> = (0..80u8).collect();
        for offset in 0..9 {
            for len in 0..40 {
                let mut shared = vec![0xAAu8; 80];
                // SAFETY: both ranges lie inside the vectors, which nobody else has.
                unsafe { super::write(shared.as_mut_ptr().add(offset), &source[3..3 + len]) };
                assert_eq!(shared[offset..offset + len], source[3..3 + len]);
                assert!(shared[..offset].iter().chain(&shared[offset + len..]).all(|&byte| byte == 0xAA));
                let mut back = vec![0u8; len];
                // SAFETY: as above.
                unsafe { super::read(shared.as_ptr().add(offset), &mut back) };
                assert_eq!(back, source[3..3 + len]);
            }
        }
    }
}

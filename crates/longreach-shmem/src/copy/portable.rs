//! Copies as relaxed atomics: eight bytes at a time, single ones at the ends.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// # Safety
/// As [`super::read`].
pub(super) unsafe fn read(from: *const u8, into: &mut [u8]) {
    let (head, words) = split(from, into.len());
    let (first, rest) = into.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words * 8);
    // SAFETY: `from` is valid for the whole length (the caller's promise), `split` makes the middle 8-aligned, and
    // atomics may alias each other. Relaxed: signals order the copies.
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

/// # Safety
/// As [`super::write`].
pub(super) unsafe fn write(into: *mut u8, from: &[u8]) {
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
fn split(pointer: *const u8, len: usize) -> (usize, usize) {
    let head = pointer.align_offset(8).min(len);
    (head, (len - head) / 8)
}

//! Copies as relaxed atomics of whole words. A word at an end, of which only some bytes are meant, is read whole and
//! written by compare-and-exchange, so that all accesses are of one size and the bytes beside keep what others write.

use super::WORD;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(size_of::<AtomicU64>() == WORD && align_of::<AtomicU64>() <= WORD);

/// # Safety
/// As [`super::read`].
pub(super) unsafe fn read(from: *const u8, into: &mut [u8]) {
    let skip = from.addr() % WORD;
    let (first, rest) = into.split_at_mut(head(skip, into.len()));
    // SAFETY: words that hold bytes of the copy are valid (the caller's promise), and aligned as `skip` goes back to
    // a multiple of WORD. Relaxed: signals order the copies.
    unsafe {
        let mut word = from.sub(skip).cast::<AtomicU64>();
        if !first.is_empty() {
            let bytes = (*word).load(Ordering::Relaxed).to_ne_bytes();
            first.copy_from_slice(&bytes[skip..skip + first.len()]);
            word = word.add(1);
        }
        for part in rest.chunks_mut(WORD) {
            let bytes = (*word).load(Ordering::Relaxed).to_ne_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
            word = word.add(1);
        }
    }
}

/// # Safety
/// As [`super::write`].
pub(super) unsafe fn write(into: *mut u8, from: &[u8]) {
    let skip = into.addr() % WORD;
    let (first, rest) = from.split_at(head(skip, from.len()));
    let (middle, last) = rest.as_chunks::<WORD>();
    // SAFETY: as in `read`. Relaxed: as in `read`.
    unsafe {
        let mut word = into.sub(skip).cast::<AtomicU64>();
        if !first.is_empty() {
            merge(&*word, skip, first);
            word = word.add(1);
        }
        for bytes in middle {
            (*word).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            word = word.add(1);
        }
        if !last.is_empty() {
            merge(&*word, 0, last);
        }
    }
}

/// Bytes of the copy that are in its first word, when that is not the copy's from its beginning.
fn head(skip: usize, len: usize) -> usize {
    if skip == 0 { 0 } else { len.min(WORD - skip) }
}

/// Replaces the bytes of `word` from `skip`.
fn merge(word: &AtomicU64, skip: usize, bytes: &[u8]) {
    let merged = |old: u64| {
        let mut new = old.to_ne_bytes();
        new[skip..skip + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(new))
    };
    // Relaxed: as in `read`. It always succeeds in the end, as `merged` never declines.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
}

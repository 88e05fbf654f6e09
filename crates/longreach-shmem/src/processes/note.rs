//! Notes in shared memory: a few bytes that one thread at a time writes and any process reads whole or not at all.

use crate::copy;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes that a note can hold.
pub(super) const CAPACITY: usize = 368;
/// Bytes that a note takes: version, length, text.
pub(super) const SIZE: usize = 16 + CAPACITY;

// The text's words are its own.
const _: () = assert!(CAPACITY.is_multiple_of(copy::WORD));

/// Times that a reader looks again because the writer was at work. A writer that was killed at work leaves its note
/// unreadable, which must not hold the reader.
const LOOKS: usize = 1000;

/// A note at a place in shared memory; all zeros is an empty one.
#[derive(Clone, Copy)]
pub(super) struct Note<'m> {
    version: &'m AtomicU64,
    len: &'m AtomicU64,
    text: *mut u8,
}

impl<'m> Note<'m> {
    /// # Safety
    /// `start` must be 8-aligned and valid for `SIZE` bytes for `'m`, which everybody uses as a note.
    pub(super) unsafe fn at(start: *mut u8) -> Self {
        // SAFETY: the caller's promise; atomics may alias.
        unsafe { Self { version: &*start.cast(), len: &*start.add(8).cast(), text: start.add(16) } }
    }

    /// Writes the note; one that is too long is left out, and the note is empty then. One writer at a time.
    pub(super) fn write(&self, text: &[u8]) {
        let text = if text.len() > CAPACITY { &[] } else { text };
        // Relaxed: only this thread writes.
        let version = self.version.load(Ordering::Relaxed);
        // Odd while it is written. The fence keeps the bytes behind it (a seqlock, as in Boehm, "Can seqlocks get
        // along with programming language memory models?", 2012).
        self.version.store(version | 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.len.store(text.len() as u64, Ordering::Relaxed);
        // SAFETY: `text` has CAPACITY bytes of room, reached by `copy` only.
        unsafe { copy::write(self.text, text) };
        // Release: who reads this version reads its bytes.
        self.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }

    /// The note, if it is not empty and can be read.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        for _ in 0..LOOKS {
            // Acquire: pairs with the last store of `write`.
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                // Relaxed: checked by the second look at the version.
                let len = self.len.load(Ordering::Relaxed);
                let mut text = vec![0; (len as usize).min(CAPACITY)];
                // SAFETY: within CAPACITY bytes, reached by `copy` only.
                unsafe { copy::read(self.text, &mut text) };
                // Keeps the reads above ahead of the second look.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return (!text.is_empty()).then_some(text);
                }
            }
            std::thread::yield_now();
        }
        None
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct Place([AtomicU64; SIZE / 8]);

    impl Place {
        fn new() -> Self {
            Self(std::array::from_fn(|_| AtomicU64::new(0)))
        }
        fn note(&self) -> Note<'_> {
            // SAFETY: 8-aligned, of that size, and used as a note only.
            unsafe { Note::at(self.0.as_ptr().cast::<u8>().cast_mut()) }
        }
    }

    #[test]
    fn a_note_is_read_whole_or_not_at_all() {
        let place = Place::new();
        assert_eq!(place.note().read(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..20_000usize {
                    place.note().write(&vec![b'a' + (i % 26) as u8; 1 + i % CAPACITY]);
                }
            });
            for _ in 0..20_000 {
                if let Some(text) = place.note().read() {
                    assert!(text.iter().all(|byte| *byte == text[0]), "{text:?}");
                }
            }
        });
        place.note().write(b"last");
        assert_eq!(place.note().read().as_deref(), Some(&b"last"[..]));
        place.note().write(&[1; CAPACITY + 1]);
        assert_eq!(place.note().read(), None);
    }

    #[test]
    fn a_writer_that_died_at_work_holds_nobody() {
        let place = Place::new();
        place.note().write(b"x");
        place.0[0].store(3, Ordering::Relaxed);
        assert_eq!(place.note().read(), None);
        // And its note can be written again.
        place.note().write(b"y");
        assert_eq!(place.note().read().as_deref(), Some(&b"y"[..]));
    }
}

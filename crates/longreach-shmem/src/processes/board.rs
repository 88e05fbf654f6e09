//! The board of a world: what all PEs may know of each other, in one memory file.
//!
//! A head, then a block a PE. Everything on it is an atomic, a bell, a note, or the text of a failure, which is
//! written before the word that tells of it.

use super::bell::Bell;
use super::note::{Note, SIZE};
use super::segment::Segment;
use crate::copy;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the head: the world's origin, and who failed first.
const HEAD: usize = 4096;
const ORIGIN: usize = 0;
const FIRST: usize = 64;

/// Offsets in a PE's block; what is written often has a cache line to itself.
const BELL: usize = 0;
const PROGRESS: usize = 64;
const FINISHED: usize = 128;
const REPORTED: usize = 192;
const BEATS: usize = 256;
const WORKING: usize = 320;
const DOING: usize = 384;
const WAITS: usize = 1024;
const FAILURE: usize = WAITS + WAITERS * SIZE;
const BLOCK: usize = FAILURE + 8 + FAILURE_TEXT;

/// Streams of a PE that can be known to wait at the same time.
pub(super) const WAITERS: usize = 64;
/// Bytes of a failure's text.
pub(super) const FAILURE_TEXT: usize = 8192 - 8;

const _: () = assert!(DOING + SIZE <= WAITS && SIZE.is_multiple_of(8) && BLOCK.is_multiple_of(64));
// A text's words are its own.
const _: () = assert!((FAILURE + 8).is_multiple_of(copy::WORD) && FAILURE_TEXT.is_multiple_of(copy::WORD));

pub(super) struct Board {
    segment: Segment,
}

impl Board {
    /// A new board, whose seconds count from `origin`, in nanoseconds of the machine's clock.
    pub(super) fn new(pes: usize, origin: u64) -> Result<Self, Errno> {
        let board = Self { segment: Segment::new(Self::len(pes)?)? };
        // Relaxed: others get the board by a message.
        board.word(ORIGIN).store(origin, Ordering::Relaxed);
        Ok(board)
    }

    /// The board that PE 0 has made for `pes` PEs.
    pub(super) fn open(file: OwnedFd, pes: usize) -> Result<Self, Errno> {
        Ok(Self { segment: Segment::open(file, Self::len(pes)?)? })
    }

    fn len(pes: usize) -> Result<usize, Errno> {
        pes.checked_mul(BLOCK).and_then(|blocks| blocks.checked_add(HEAD)).ok_or(Errno::NOMEM)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.segment.file()
    }

    pub(super) fn origin(&self) -> u64 {
        // Relaxed: as in `new`.
        self.word(ORIGIN).load(Ordering::Relaxed)
    }

    /// Who failed first: its number + 1, or 0.
    pub(super) fn first(&self) -> &AtomicU64 {
        self.word(FIRST)
    }

    pub(super) fn bell(&self, pe: usize) -> &Bell {
        // SAFETY: the place is aligned and inside the mapping; it is a bell for every process, all zeros at first.
        unsafe { &*self.place(pe, BELL, size_of::<Bell>()).cast() }
    }

    pub(super) fn progress(&self, pe: usize) -> &AtomicU64 {
        self.word(Self::block(pe) + PROGRESS)
    }

    pub(super) fn beats(&self, pe: usize) -> &AtomicU64 {
        self.word(Self::block(pe) + BEATS)
    }

    pub(super) fn working(&self, pe: usize) -> &AtomicU64 {
        self.word(Self::block(pe) + WORKING)
    }

    pub(super) fn finished(&self, pe: usize) -> &AtomicU64 {
        self.word(Self::block(pe) + FINISHED)
    }

    pub(super) fn reported(&self, pe: usize) -> &AtomicU64 {
        self.word(Self::block(pe) + REPORTED)
    }

    pub(super) fn doing(&self, pe: usize) -> Note<'_> {
        // SAFETY: the place is aligned and inside the mapping; it is a note for every process.
        unsafe { Note::at(self.place(pe, DOING, SIZE)) }
    }

    /// Note `number` of what streams of `pe` wait for.
    pub(super) fn wait(&self, pe: usize, number: usize) -> Note<'_> {
        assert!(number < WAITERS, "a PE has {WAITERS} notes");
        // SAFETY: as in `doing`.
        unsafe { Note::at(self.place(pe, WAITS + number * SIZE, SIZE)) }
    }

    /// Writes the text of the failure that `pe` reports. To be called before `first` names `pe`, never after.
    pub(super) fn write_failure(&self, pe: usize, text: &[u8]) {
        let text = &text[..text.len().min(FAILURE_TEXT)];
        // Relaxed: `first` orders it.
        self.word(Self::block(pe) + FAILURE).store(text.len() as u64, Ordering::Relaxed);
        // SAFETY: the place has room for FAILURE_TEXT bytes, which are reached by `copy` only.
        unsafe { copy::write(self.place(pe, FAILURE + 8, FAILURE_TEXT), text) };
    }

    /// Reads the text of the failure that `pe` has reported; to be called after `first` names `pe`.
    pub(super) fn read_failure(&self, pe: usize) -> Vec<u8> {
        // Relaxed: `first` orders it.
        let len = self.word(Self::block(pe) + FAILURE).load(Ordering::Relaxed) as usize;
        let mut text = vec![0; len.min(FAILURE_TEXT)];
        // SAFETY: as in `write_failure`.
        unsafe { copy::read(self.place(pe, FAILURE + 8, FAILURE_TEXT), &mut text) };
        text
    }

    const fn block(pe: usize) -> usize {
        HEAD + pe * BLOCK
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as `bell`: aligned, inside, and an atomic for every process.
        unsafe { &*self.at(offset, 8).cast() }
    }

    fn place(&self, pe: usize, offset: usize, len: usize) -> *mut u8 {
        self.at(Self::block(pe) + offset, len)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.segment.len(), "a PE of the world");
        // SAFETY: inside the mapping.
        unsafe { self.segment.start().as_ptr().add(offset) }
    }
}

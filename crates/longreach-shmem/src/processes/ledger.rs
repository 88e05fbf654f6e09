//! What the processes of a world know of a PE, on the board.

use super::board::{Board, WAITERS};
use super::clock;
use super::wire::{decode_doing, decode_wait, encode_doing, encode_wait};
use crate::blame::Record;
use crate::failure::Operation;
use crate::transport::Ledger;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) struct BoardLedger {
    board: Arc<Board>,
    pe: usize,
    /// Which note each stream that waits has; only the PE's own process writes notes.
    notes: Mutex<HashMap<String, usize>>,
}

impl BoardLedger {
    pub(super) fn new(board: Arc<Board>, pe: usize) -> Self {
        Self { board, pe, notes: Mutex::default() }
    }

    fn notes(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger for BoardLedger {
    fn tick(&self) {
        // Relaxed: a count for deadlines, it orders nothing.
        self.board.progress(self.pe).fetch_add(1, Ordering::Relaxed);
    }

    fn progress(&self) -> u64 {
        // Relaxed: as in `tick`.
        self.board.progress(self.pe).load(Ordering::Relaxed)
    }

    fn beat(&self) {
        // Relaxed: as in `tick`.
        self.board.beats(self.pe).fetch_add(1, Ordering::Relaxed);
    }

    fn beats(&self) -> u64 {
        // Relaxed: as in `tick`.
        self.board.beats(self.pe).load(Ordering::Relaxed)
    }

    fn finish(&self, run: u64) {
        // Release: pairs with `finished`. A maximum: a PE that has left stays gone.
        self.board.finished(self.pe).fetch_max(run, Ordering::Release);
    }

    fn finished(&self) -> u64 {
        // Acquire: pairs with `finish`.
        self.board.finished(self.pe).load(Ordering::Acquire)
    }

    fn work(&self, working: bool) {
        // Relaxed: a count for blame, it orders nothing.
        if working {
            self.board.working(self.pe).fetch_add(1, Ordering::Relaxed);
        } else {
            self.board.working(self.pe).fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn working(&self) -> bool {
        // Relaxed: as in `work`.
        self.board.working(self.pe).load(Ordering::Relaxed).cast_signed() > 0
    }

    fn wait(&self, stream: &str, record: Record) {
        let mut notes = self.notes();
        let known = notes.get(stream).copied();
        let free = || (0..WAITERS).find(|number| !notes.values().any(|used| used == number));
        // Where more streams wait than there are notes the chain of blame ends here: that names this PE, which is
        // less than the truth, and not wrong.
        if let Some(number) = known.or_else(free) {
            notes.insert(stream.to_owned(), number);
            self.board.wait(self.pe, number).write(&encode_wait(stream, record));
        }
    }

    fn run(&self, stream: &str) {
        let mut notes = self.notes();
        if let Some(number) = notes.remove(stream) {
            self.board.wait(self.pe, number).write(&[]);
        }
        drop(notes);
        self.tick();
    }

    fn record(&self, stream: &str) -> Option<Record> {
        (0..WAITERS)
            .filter_map(|number| decode_wait(&self.board.wait(self.pe, number).read()?))
            .find_map(|(name, record)| (name == stream).then_some(record))
    }

    fn begin(&self, operation: Operation) {
        // Streams of a PE may begin something at the same time; a note has one writer.
        let _one = self.notes();
        self.board.doing(self.pe).write(&encode_doing(operation, clock::now()));
    }

    fn doing(&self) -> Option<(Operation, Duration)> {
        let (operation, since) = decode_doing(&self.board.doing(self.pe).read()?)?;
        Some((operation, Duration::from_nanos(clock::now().saturating_sub(since))))
    }

    fn set_reported(&self) {
        // Relaxed: a note for the user's output, it orders nothing.
        self.board.reported(self.pe).store(1, Ordering::Relaxed);
    }

    fn reported(&self) -> bool {
        // Relaxed: as in `set_reported`.
        self.board.reported(self.pe).load(Ordering::Relaxed) > 0
    }
}

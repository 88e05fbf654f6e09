//! What the threads of a world know of a PE.

use crate::blame::Record;
use crate::failure::Operation;
use crate::transport::Ledger;
use longreach_device::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use std::collections::HashMap;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct OwnLedger {
    progress: AtomicU64,
    beats: AtomicU64,
    working: AtomicU64,
    finished: AtomicU64,
    waits: Mutex<HashMap<String, Record>>,
    doing: Mutex<Option<(Operation, Instant)>>,
    reported: AtomicBool,
}

impl Ledger for OwnLedger {
    fn tick(&self) {
        // Relaxed: a count for deadlines, it orders nothing.
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn progress(&self) -> u64 {
        // Relaxed: as in `tick`.
        self.progress.load(Ordering::Relaxed)
    }

    fn beat(&self) {
        // Relaxed: as in `tick`.
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    fn beats(&self) -> u64 {
        // Relaxed: as in `tick`.
        self.beats.load(Ordering::Relaxed)
    }

    fn finish(&self, run: u64) {
        // Release: pairs with `finished`, so that who sees the end sees the PE's last signals.
        self.finished.store(run, Ordering::Release);
    }

    fn finished(&self) -> u64 {
        // Acquire: pairs with `finish`.
        self.finished.load(Ordering::Acquire)
    }

    fn work(&self, working: bool) {
        // Relaxed: a count for blame, it orders nothing.
        if working {
            self.working.fetch_add(1, Ordering::Relaxed);
        } else {
            self.working.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn working(&self) -> bool {
        // Relaxed: as in `work`.
        self.working.load(Ordering::Relaxed).cast_signed() > 0
    }

    fn wait(&self, stream: &str, record: Record) {
        lock(&self.waits).insert(stream.to_owned(), record);
    }

    fn run(&self, stream: &str) {
        lock(&self.waits).remove(stream);
        self.tick();
    }

    fn record(&self, stream: &str) -> Option<Record> {
        lock(&self.waits).get(stream).cloned()
    }

    fn begin(&self, operation: Operation) {
        *lock(&self.doing) = Some((operation, Instant::now()));
    }

    fn doing(&self) -> Option<(Operation, Duration)> {
        lock(&self.doing).map(|(operation, since)| (operation, since.elapsed()))
    }

    fn set_reported(&self) {
        // Relaxed: a note for the user's output, it orders nothing.
        self.reported.store(true, Ordering::Relaxed);
    }

    fn reported(&self) -> bool {
        // Relaxed: as in `set_reported`.
        self.reported.load(Ordering::Relaxed)
    }
}

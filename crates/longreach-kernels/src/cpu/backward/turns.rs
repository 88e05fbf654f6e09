//! Who may add to a block of dQ next.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Spins before a waiting thread offers its core to others.
const SPINS: usize = 256;

/// A counter for each block of dQ: the block of keys that may add next.
#[derive(Debug)]
pub(crate) struct Turns {
    next: Vec<AtomicUsize>,
    /// A holder of a turn has panicked and will never pass it on.
    broken: AtomicBool,
}

impl Turns {
    /// Turns that begin with the given blocks of keys.
    pub(crate) fn new(first: &[usize]) -> Self {
        Self {
            next: first.iter().map(|&block| AtomicUsize::new(block)).collect(),
            broken: AtomicBool::new(false),
        }
    }

    /// Waits until block of keys `block` may add to the block of dQ `at`.
    ///
    /// # Panics
    /// Where the thread that holds the turn has panicked.
    pub(crate) fn wait(&self, at: usize, block: usize) {
        let mut spins = 0;
        // Acquire pairs with the Release in `pass`: what the previous block added is visible.
        while self.next[at].load(Ordering::Acquire) != block {
            // Relaxed: the flag only ends the wait; nothing is read because of it.
            assert!(!self.broken.load(Ordering::Relaxed), "another thread of this backward panicked");
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Lets the next block of keys add.
    pub(crate) fn pass(&self, at: usize, block: usize) {
        // Release pairs with the Acquire in `wait`.
        self.next[at].store(block + 1, Ordering::Release);
    }

    /// Runs `work`; when it panics, ends all waits instead of leaving them for ever.
    pub(crate) fn guarded(&self, work: impl FnOnce()) {
        struct Guard<'a>(&'a Turns);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    // Relaxed: see `wait`.
                    self.0.broken.store(true, Ordering::Relaxed);
                }
            }
        }
        let guard = Guard(self);
        work();
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_add_in_order() {
        let turns = Turns::new(&[3]);
        let log = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for block in [5, 4, 3] {
                let (turns, log) = (&turns, &log);
                scope.spawn(move || {
                    turns.wait(0, block);
                    log.lock().unwrap().push(block);
                    turns.pass(0, block);
                });
            }
        });
        assert_eq!(*log.lock().unwrap(), [3, 4, 5]);
    }

    #[test]
    fn a_panic_ends_the_waits_behind_it() {
        let turns = Turns::new(&[0]);
        let waits = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.wait(0, 1));
            let dying = scope.spawn(|| turns.guarded(|| panic!("planted")));
            assert!(dying.join().is_err());
            waiting.join()
        });
        assert!(waits.is_err());
    }
}

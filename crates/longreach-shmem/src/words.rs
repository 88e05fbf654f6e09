//! Signal words and the bell that wakes who waits for them.

use longreach_device::sync::{AtomicU64, Condvar, Mutex, Ordering, lock, wait_timeout};
use std::time::Duration;

/// A 64-bit word that only grows.
#[derive(Debug)]
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// A word that holds 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word's value; what its setter wrote before setting it is visible afterwards.
    pub fn load(&self) -> u64 {
        // Acquire: pairs with the Release of `set` and `add`, so that data written before the signal is seen after it.
        self.0.load(Ordering::Acquire)
    }

    /// Raises the word to `value` if it holds less; the former value is returned.
    pub fn set(&self, value: u64) -> u64 {
        // Release: pairs with `load`. A maximum keeps the word monotone whatever order sets arrive in; being a
        // read-modify-write it also continues the release sequence of earlier setters.
        #[cfg(not(plain_copies))]
        return self.0.fetch_max(value, Ordering::Release);
        // ThreadSanitizer does not see a maximum, but a compare-and-exchange.
        #[cfg(plain_copies)]
        self.0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |have| (have < value).then_some(value))
            .unwrap_or_else(|have| have)
    }

    /// Adds to the word; the former value is returned.
    pub fn add(&self, value: u64) -> u64 {
        // Release: as in `set`.
        self.0.fetch_add(value, Ordering::Release)
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

/// Wakes the threads of one PE that wait for a word to change.
#[derive(Debug, Default)]
pub struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// A bell that nobody waits for.
    pub fn new() -> Self {
        Self { lock: Mutex::new(()), rung: Condvar::new() }
    }

    /// Wakes all who wait; to be called after the change.
    pub fn ring(&self) {
        // Taking the lock closes the gap between a waiter's last look and its sleep.
        drop(lock(&self.lock));
        self.rung.notify_all();
    }

    /// Sleeps until the bell is rung or `timeout` has passed, unless `ready` holds already; returns `ready`.
    pub fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> bool {
        let guard = lock(&self.lock);
        if ready() {
            return true;
        }
        drop(wait_timeout(&self.rung, guard, timeout));
        ready()
    }
}

#[cfg(all(test, loom))]
mod model {
    //! All interleavings and all allowed reorderings of the words. Run with
    //! `RUSTFLAGS="--cfg loom" cargo test --release -p longreach-shmem --lib`.
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Shared {
        data: UnsafeCell<u64>,
        published: Word,
        consumed: Word,
        bell: Bell,
    }

    // SAFETY: the words order all access to `data`; that is what the models below check.
    unsafe impl Sync for Shared {}

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            data: UnsafeCell::new(0),
            published: Word::new(),
            consumed: Word::new(),
            bell: Bell::new(),
        })
    }

    fn wait_for(bell: &Bell, word: &Word, value: u64) {
        while !bell.wait(Duration::MAX, || word.load() >= value) {}
    }

    #[test]
    fn data_written_before_a_signal_is_read_after_it() {
        loom::model(|| {
            let shared = shared();
            let owner = shared.clone();
            let writer = thread::spawn(move || {
                // SAFETY: checked by loom: nobody reads before `published`.
                owner.data.with_mut(|data| unsafe { *data = 7 });
                owner.published.set(1);
                owner.bell.ring();
            });
            wait_for(&shared.bell, &shared.published, 1);
            // SAFETY: checked by loom: the owner has published.
            assert_eq!(shared.data.with(|data| unsafe { *data }), 7);
            writer.join().unwrap();
        });
    }

    fn overwrite(wait_for_consumed: bool) {
        loom::model(move || {
            let shared = shared();
            let owner = shared.clone();
            let writer = thread::spawn(move || {
                // SAFETY: checked by loom.
                owner.data.with_mut(|data| unsafe { *data = 1 });
                owner.published.set(1);
                owner.bell.ring();
                if wait_for_consumed {
                    wait_for(&owner.bell, &owner.consumed, 1);
                }
                // SAFETY: checked by loom: only right after the reader has consumed.
                owner.data.with_mut(|data| unsafe { *data = 2 });
            });
            wait_for(&shared.bell, &shared.published, 1);
            // SAFETY: checked by loom.
            let seen = shared.data.with(|data| unsafe { *data });
            shared.consumed.set(1);
            shared.bell.ring();
            assert_eq!(seen, 1);
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_slot_is_overwritten_only_after_its_reader() {
        overwrite(true);
    }

    #[test]
    #[should_panic]
    fn without_the_wait_for_consumed_the_model_fails() {
        overwrite(false);
    }

    #[test]
    fn late_smaller_sets_do_not_lower_a_word() {
        loom::model(|| {
            let shared = shared();
            let (a, b) = (shared.clone(), shared.clone());
            let threads = [
                thread::spawn(move || {
                    a.published.set(2);
                    a.bell.ring();
                }),
                thread::spawn(move || {
                    b.published.set(1);
                    b.bell.ring();
                }),
            ];
            wait_for(&shared.bell, &shared.published, 2);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(shared.published.load(), 2);
        });
    }
}

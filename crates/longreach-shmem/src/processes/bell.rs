//! A bell in shared memory: wakes the threads of another process, and sleeps without a core to burn.

#[cfg(loom)]
use longreach_device::sync::Mutex;
use longreach_device::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// Looks at the condition before the thread sleeps: what comes within about a microsecond costs no system call.
#[cfg(not(loom))]
const SPINS: usize = 64;
/// Looks at which the thread lets others run first.
#[cfg(not(loom))]
const YIELDS: usize = 4;

/// Lies in memory that processes share; all zeros is a bell that nobody waits for.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Bell {
    /// Times that it has been rung.
    rung: AtomicU32,
    /// Threads that sleep or are about to.
    waiting: AtomicU32,
    /// Loom has no futex: this says what one would do.
    #[cfg(loom)]
    sleep: Mutex<Sleep>,
}

/// Of the one thread that waits in a model: whether it has gone to sleep, and was woken afterwards.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Sleep {
    asleep: bool,
    woken: bool,
}

impl Bell {
    /// Wakes all who wait; to be called after the change.
    pub(super) fn ring(&self) {
        // AcqRel, both: either the waiter's count is seen here, or the waiter, who counts itself first, sees the ring,
        // and with it the change. Both are read-modify-writes, which see the latest value.
        self.rung.fetch_add(1, Ordering::AcqRel);
        if self.waiting.fetch_add(0, Ordering::AcqRel) > 0 {
            self.wake();
        }
    }

    /// Sleeps until the bell is rung or `timeout` has passed, unless `ready` holds already; returns `ready`.
    pub(super) fn wait(&self, timeout: Duration, ready: impl Fn() -> bool) -> bool {
        #[cfg(not(loom))]
        for look in 0..SPINS + YIELDS {
            if ready() {
                return true;
            }
            if look < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        // AcqRel, both: as in `ring`.
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let rung = self.rung.fetch_add(0, Ordering::AcqRel);
        let already = ready();
        if !already {
            self.sleep(rung, timeout);
        }
        // Relaxed: too high a count costs a system call and no more. In a model, who sleeps stays asleep.
        #[cfg(not(loom))]
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        already || ready()
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        use rustix::thread::futex;
        // Fails for an address that is no futex only, and this is one.
        let _ = futex::wake(&self.rung, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps while the bell has been rung `rung` times.
    #[cfg(not(loom))]
    fn sleep(&self, rung: u32, timeout: Duration) {
        use rustix::thread::futex;
        let timeout = timeout.try_into().ok();
        // However it ends (rung before, a signal, the timeout), the caller looks at its condition again.
        let _ = futex::wait(&self.rung, futex::Flags::empty(), rung, timeout.as_ref());
    }

    #[cfg(loom)]
    fn wake(&self) {
        let mut sleep = longreach_device::sync::lock(&self.sleep);
        sleep.woken = sleep.asleep;
    }

    #[cfg(loom)]
    fn sleep(&self, rung: u32, _timeout: Duration) {
        // As the kernel does, the word is compared under the lock that a waker takes.
        let mut sleep = longreach_device::sync::lock(&self.sleep);
        sleep.asleep = self.rung.load(Ordering::Acquire) == rung;
    }
}

#[cfg(all(test, loom))]
mod model {
    //! All interleavings of a ring and a wait. Run with
    //! `RUSTFLAGS="--cfg loom" cargo test --release -p longreach-shmem --lib`.
    use super::*;
    use crate::words::Word;
    use longreach_device::sync::lock;
    use loom::sync::Arc;
    use loom::thread;

    fn wakes(ring: fn(&Bell)) {
        loom::model(move || {
            let (rung, waiting) = (AtomicU32::new(0), AtomicU32::new(0));
            let bell = Bell { rung, waiting, sleep: Mutex::new(Sleep::default()) };
            let shared = Arc::new((bell, Word::new()));
            let theirs = shared.clone();
            let setter = thread::spawn(move || {
                theirs.1.set(1);
                ring(&theirs.0);
            });
            shared.0.wait(Duration::MAX, || shared.1.load() >= 1);
            setter.join().unwrap();
            let sleep = lock(&shared.0.sleep);
            assert!(!sleep.asleep || sleep.woken, "a thread sleeps for ever");
        });
    }

    #[test]
    fn no_ring_is_lost() {
        wakes(Bell::ring);
    }

    #[test]
    #[should_panic(expected = "sleeps for ever")]
    fn without_the_count_of_rings_the_model_fails() {
        wakes(|bell| {
            if bell.waiting.fetch_add(0, Ordering::AcqRel) > 0 {
                bell.wake();
            }
        });
    }

    #[test]
    #[should_panic(expected = "sleeps for ever")]
    fn without_the_waiters_count_the_model_fails() {
        wakes(|bell| {
            bell.rung.fetch_add(1, Ordering::AcqRel);
        });
    }
}

//! The one place that says whose threads, locks and atomics are used: the standard library's, loom's, shuttle's, or
//! locks that ThreadSanitizer sees through. A checker sees a program only through these types, so the crates above
//! take them from here.

#[cfg(all(plain_copies, not(any(loom, shuttle))))]
mod spin;

#[cfg(all(plain_copies, not(any(loom, shuttle))))]
pub use spin::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle, plain_copies)))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

#[cfg(loom)]
pub use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

#[cfg(all(shuttle, not(loom)))]
pub use shuttle::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

use std::time::Duration;

/// Locks of what a whole process shares and no model looks at.
pub mod process {
    #[cfg(all(plain_copies, not(any(loom, shuttle))))]
    pub use super::spin::{Mutex, OnceLock};
    #[cfg(any(loom, shuttle, not(plain_copies)))]
    pub use std::sync::{Mutex, OnceLock};
}

/// Locks `mutex`. A holder that panicked has already failed its stream or its PE, and the protected values stay
/// consistent between statements, so poisoning adds nothing here.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits for a notification of `condvar`.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits for a notification of `condvar`, for `timeout` at most. Model checkers have no clock: there it waits for
/// the notification, and a missing one is found as a deadlock.
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(any(loom, shuttle))]
    {
        let _ = timeout;
        wait(condvar, guard)
    }
    #[cfg(all(plain_copies, not(any(loom, shuttle))))]
    {
        condvar.wait_for(guard, timeout)
    }
    #[cfg(not(any(loom, shuttle, plain_copies)))]
    {
        condvar.wait_timeout(guard, timeout).unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }
}

/// Waits that a model check leaves out by name, to show that it would notice. Exists under shuttle only.
#[cfg(shuttle)]
pub mod omitted {
    use std::cell::Cell;

    std::thread_local! {
        // Shuttle runs all threads of a check on the one that started it, so this is a value a check.
        static WAITS: Cell<&'static [&'static str]> = const { Cell::new(&[]) };
    }

    /// Leaves the waits of these names out from now on, and no others.
    pub fn set(waits: &'static [&'static str]) {
        WAITS.set(waits);
    }

    /// Whether the wait of that name is left out.
    pub fn is(wait: &str) -> bool {
        WAITS.get().contains(&wait)
    }
}

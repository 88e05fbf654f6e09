//! Locks for ThreadSanitizer, which sees atomics of this workspace's own code only: the standard library comes
//! compiled without it, so what its locks order would look unordered. Built with `--cfg plain_copies` only.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::LockResult;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at a word that another thread changes.
const NAP: Duration = Duration::from_micros(50);

/// A mutex that is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and there is one at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// An open mutex.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the mutex; always `Ok`.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // Acquire: pairs with the Release of the last guard's drop.
        while self.locked.swap(true, Ordering::Acquire) {
            std::thread::sleep(NAP);
        }
        Ok(MutexGuard { mutex: self, value: PhantomData })
    }
}

/// The right to the value of a [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'m, T> {
    mutex: &'m Mutex<T>,
    /// A guard is to other threads what the value is.
    value: PhantomData<&'m mut T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this is the one guard.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with `lock`.
        self.mutex.locked.store(false, Ordering::Release);
    }
}

/// Lets threads wait for a notification.
#[derive(Debug, Default)]
pub struct Condvar {
    notifications: AtomicU64,
}

impl Condvar {
    /// A condition that nobody waits for.
    pub const fn new() -> Self {
        Self { notifications: AtomicU64::new(0) }
    }

    /// Waits for a notification; always `Ok`.
    pub fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> LockResult<MutexGuard<'m, T>> {
        Ok(self.wait_for(guard, Duration::MAX))
    }

    /// Waits for a notification, for `timeout` at most.
    pub fn wait_for<'m, T>(&self, guard: MutexGuard<'m, T>, timeout: Duration) -> MutexGuard<'m, T> {
        let (mutex, began) = (guard.mutex, Instant::now());
        // Relaxed, here and below: a count; the mutex orders what it tells of.
        let before = self.notifications.load(Ordering::Relaxed);
        drop(guard);
        while self.notifications.load(Ordering::Relaxed) == before && began.elapsed() < timeout {
            std::thread::sleep(NAP);
        }
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.notifications.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes all who wait, which a waiter cannot tell from a spurious waking.
    pub fn notify_one(&self) {
        self.notify_all();
    }
}

/// A value that is made once and never changes.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: Mutex<Option<T>>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self { value: Mutex::new(None) }
    }
}

// SAFETY: threads share the value once it is there, and any of them may have made it.
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// The value, made by `make` if it is not there yet; others wait meanwhile.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let mut value = self.value.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let made: *const T = value.get_or_insert_with(make);
        // SAFETY: nothing replaces the value while `self` lives.
        unsafe { &*made }
    }
}

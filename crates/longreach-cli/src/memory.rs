//! Memory that runs out is a failure like any other: every PE tells of it, with the bytes that were asked for.
//!
//! Where an allocation that cannot fail fails, Rust's library prints a line and aborts. The thread that does so is held
//! in the handler of that signal for as long as it takes another one to tell.

use crate::error::{complain, status};
use crate::{failed, interrupt};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the largest allocation that was not granted; 0 is none. Whoever has none left for much has none for little.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// The thread that aborts is to go on with that.
static HOPELESS: AtomicBool = AtomicBool::new(false);

/// Memory for telling that there is no more.
static RESERVE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

const RESERVED: usize = 1 << 20;

/// How often, and how many times, the thread that aborts looks whether it is hopeless.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS: usize = 600;

/// The system's allocator, which remembers what it could not give.
pub struct Allocator;

fn remember(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        // Relaxed: the abort that follows on the same thread orders it; for others it is a number in a message.
        REFUSED.fetch_max(bytes, Ordering::Relaxed);
    }
    pointer
}

// SAFETY: everything is passed on to the system's allocator, with nothing changed.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that are asked for.
        remember(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        remember(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        remember(unsafe { System.realloc(pointer, layout, size) }, size)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Puts memory aside. Where there is none already, running out of it will be told worse.
pub fn reserve() {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    // Filled, since pages that were never written might not be had later.
    if reserve.try_reserve_exact(RESERVED).is_ok() {
        reserve.resize(RESERVED, 1);
    }
}

/// What the signal's handler does on the thread that aborts: waits, for this process ends another way. Allocates
/// nothing and takes no lock.
pub fn hold() {
    for _ in 0..LOOKS {
        // Relaxed: nothing but the flag is looked at.
        if HOPELESS.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// A thread aborts: ends the process with the status of a run that has failed where memory is the reason; otherwise
/// the thread goes on with its abort.
pub fn aborts() {
    // Relaxed: as in `remember`; the signal has come through a pipe since.
    let bytes = REFUSED.load(Ordering::Relaxed);
    if bytes == 0 {
        HOPELESS.store(true, Ordering::Relaxed);
        return;
    }
    *RESERVE.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    let reason = format!("memory ran out: {bytes} bytes could not be had{}", limit());
    if !failed::gives_up(&reason) {
        let advice = if limit().is_empty() { "" } else { "; raise the limit" };
        complain(&format!("{reason}{advice}"));
    }
    interrupt::remove_unfinished();
    std::process::exit(i32::from(status::RUN_FAILED));
}

/// The limit on this process's address space in brackets, with a blank before it; nothing where there is none.
pub fn limit() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let told = |limit| format!(" (this process may have {limit} bytes of address space, ulimit -v)");
    limit.map(told).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_had_is_remembered() {
        let layout = Layout::from_size_align(1 << 62, 8).unwrap();
        // SAFETY: the layout has a size.
        let pointer = std::hint::black_box(unsafe { Allocator.alloc(layout) });
        assert!(pointer.is_null());
        assert_eq!(REFUSED.load(Ordering::Relaxed), 1 << 62);
    }
}

//! Copies between symmetric memory, which any PE may touch at any time, and memory of one's own.
//!
//! Order comes from signals alone; where a caller's protocol is wrong a copy gives stale or mixed bytes, and never
//! undefined behaviour. For that, all who touch the same bytes at the same time must touch them as atomics of one size:
//! Rust gives no meaning to racing atomics of different sizes. So there is one way in a program: by instructions that
//! are atomic by the byte (`x86_64`), or as whole words (`portable`). Built with `--cfg plain_copies` they are plain
//! copies instead, so that ThreadSanitizer sees what signals fail to order.

#[cfg(plain_copies)]
mod plain;
// Tests take it wherever it compiles.
#[cfg(all(not(plain_copies), any(test, miri, loom, shuttle, not(target_arch = "x86_64"))))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri, loom, shuttle))))]
mod x86_64;

#[cfg(plain_copies)]
use plain as way;
#[cfg(all(not(plain_copies), any(miri, loom, shuttle, not(target_arch = "x86_64"))))]
use portable as way;
#[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri, loom, shuttle))))]
use x86_64 as way;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::sync::atomic::Ordering;

/// Bytes of a word, and what it is aligned to.
pub(crate) const WORD: usize = 8;

/// Copies `into.len()` bytes from `from`.
///
/// # Safety
/// The words that hold those bytes must be valid for reads for the whole call, and everybody else must touch them
/// through this module only.
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { way::read(from, into) }
}

/// Copies all of `from` to `into`. Bytes beside those stay what they are, also when others write them meanwhile.
///
/// # Safety
/// The words that hold those bytes must be valid for reads and writes for the whole call, and everybody else must touch
/// them through this module only.
pub(crate) unsafe fn write(into: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { way::write(into, from) }
}

/// Orders the copies made before it ahead of those made after it.
pub(crate) fn fence() {
    // SeqCst: the copies are relaxed; whoever sees a later one and fences as well sees the earlier ones.
    std::sync::atomic::fence(Ordering::SeqCst);
}

//! Copies by instructions of the processor: `rep movsb`, as fast as the C library's copy where it is in fast microcode,
//! else vectors of 16 bytes.
//!
//! Why this is sound. What an assembly block does must be something that Rust code could do in its place. Here that is
//! a relaxed atomic load and a relaxed atomic store of each byte, in any order:
//!
//! - a byte is never torn, so who reads it while it is written gets one value or the other;
//! - nobody touches the same bytes as atomics of another size, as all copies of the program go this way;
//! - the blocks do not promise to leave memory alone, so the compiler moves nothing across them that signals order;
//! - the processor keeps loads in order, and stores in order but for the own ones of a string instruction, which are
//!   all seen after any earlier store and before any later one, a signal's say (Intel SDM vol. 3A, "Fast-String
//!   Operation and Out-of-Order Stores"). So Release and Acquire need no instruction beside them.

use std::arch::{asm, is_x86_feature_detected};

/// Bytes of a cache line: the string instruction is at its best where it writes whole ones.
const LINE: usize = 64;
/// Bytes from which that is worth a beginning of its own.
const LONG: usize = 4096;

/// # Safety
/// As [`super::read`].
pub(super) unsafe fn read(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise; who has `into` has it alone.
    unsafe { copy(from, into.as_mut_ptr(), into.len()) }
}

/// # Safety
/// As [`super::write`].
pub(super) unsafe fn write(into: *mut u8, from: &[u8]) {
    // SAFETY: the caller's promise; nobody writes `from`.
    unsafe { copy(from.as_ptr(), into, from.len()) }
}

/// # Safety
/// As [`string`].
unsafe fn copy(from: *const u8, into: *mut u8, len: usize) {
    if is_x86_feature_detected!("ermsb") {
        // What is written decides: its first bytes go by themselves where the rest is long.
        let head = if len < LONG { 0 } else { into.addr().wrapping_neg() % LINE };
        // SAFETY: the caller's promise, for each of the two parts.
        unsafe {
            vectors(from, into, head);
            string(from.add(head), into.add(head), len - head);
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { vectors(from, into, len) }
    }
}

/// # Safety
/// `from` must be valid for reads and `into` for writes of `len` bytes for the whole call; they must not overlap; and
/// of both, what others may touch meanwhile they touch through the module above only.
pub(super) unsafe fn string(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear by the calling convention, and the instruction changes
    // the three registers only.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") into => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As [`string`].
pub(super) unsafe fn vectors(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: the caller's promise; `left` counts down what is to be copied yet, first by 16, then by one.
    unsafe {
        asm!(
            "sub {left}, 16",
            "jb 3f",
            "2:",
            "movdqu {vector}, xmmword ptr [{from}]",
            "movdqu xmmword ptr [{into}], {vector}",
            "add {from}, 16",
            "add {into}, 16",
            "sub {left}, 16",
            "jae 2b",
            "3:",
            "add {left}, 16",
            "jz 5f",
            "4:",
            "mov {byte}, byte ptr [{from}]",
            "mov byte ptr [{into}], {byte}",
            "inc {from}",
            "inc {into}",
            "dec {left}",
            "jnz 4b",
            "5:",
            left = inout(reg) len => _,
            from = inout(reg) from => _,
            into = inout(reg) into => _,
            vector = out(xmm_reg) _,
            byte = out(reg_byte) _,
            options(nostack)
        );
    }
}

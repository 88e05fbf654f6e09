//! Copies by one instruction, `rep movsb`, as fast as the C library's on processors that have it in fast microcode.
//!
//! The compiler knows of an assembly block what its operands say, and nothing of which bytes it touches when. So a byte
//! that another PE changes meanwhile is no data race of the program that the compiler reasons about; what the processor
//! then reads is one value or the other of that byte, as with relaxed atomics. The block is a compiler barrier for all
//! memory, so it is ordered with signals as the program says; and while the instruction's own stores may be seen in any
//! order, they are all seen before any later one, a signal's say (Intel SDM vol. 3, "Memory Ordering", fast strings).

use std::arch::{asm, is_x86_feature_detected};

/// Bytes from which the instruction's start is worth it.
const LEAST: usize = 256;

/// Whether a copy of `len` bytes is faster this way.
pub(super) fn pays(len: usize) -> bool {
    len >= LEAST && is_x86_feature_detected!("ermsb")
}

/// # Safety
/// `from` must be valid for reads and `into` for writes of `len` bytes for the whole call; they must not overlap; and
/// of both, what others may touch meanwhile they touch through the module above only.
pub(super) unsafe fn copy(from: *const u8, into: *mut u8, len: usize) {
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

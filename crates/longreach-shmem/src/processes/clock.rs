//! The clock that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Nanoseconds of the monotonic clock.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The moment `then` of [`now`] as this process's own clock has it.
pub(super) fn instant(then: u64) -> Instant {
    let passed = Duration::from_nanos(now().saturating_sub(then));
    Instant::now().checked_sub(passed).unwrap_or_else(Instant::now)
}

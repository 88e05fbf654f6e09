//! Turns at a device that several PEs of a process share.

use longreach_device::sync::process::Mutex;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// PEs of one process take turns at the device: one computes, all others wait until it is done, call by call and in the
/// order of their numbers. For measurements, where the times of PEs that share a device are to be told apart.
///
/// A clone is another handle. All PEs of a team share one; they need return slots for all contributions of a call.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<u64>>);

/// How often the one who waits looks.
const NAP: Duration = Duration::from_micros(20);

impl Turns {
    /// Waits until all turns before `turn`, counted from 0, are over, or `failed` says that there is no point.
    pub(crate) fn wait(&self, turn: u64, failed: impl Fn() -> bool) {
        while self.over() < turn && !failed() {
            std::thread::sleep(NAP);
        }
    }

    /// Ends turn `turn`.
    pub(crate) fn end(&self, turn: u64) {
        let mut over = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *over = (*over).max(turn + 1);
    }

    fn over(&self) -> u64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn turns_come_one_after_another() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for turn in [2, 0, 3, 1] {
                let (turns, order) = (turns.clone(), &order);
                scope.spawn(move || {
                    turns.wait(turn, || false);
                    order.lock().unwrap().push(turn);
                    turns.end(turn);
                });
            }
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
        turns.wait(9, || true);
    }
}

//! Waits for PEs, passes signals on, and ends the rest when one fails.

use super::child::Children;
use super::{Cause, End};
use crate::interrupt;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// The PEs that are left after a failure are asked to end when none has ended by itself for so long ...
const SETTLED: Duration = Duration::from_millis(500);

/// ... or so long after the failure.
const PATIENCE: Duration = Duration::from_secs(5);

/// PEs that were asked to end are killed after so long.
const ASKED: Duration = Duration::from_secs(2);

/// PEs that were interrupted are killed after so long, as they may have work to save.
const INTERRUPTED: Duration = Duration::from_secs(30);

/// Where nothing is to be done, ended PEs are looked for so often although the system tells of them.
const IDLE: Duration = Duration::from_secs(10);

/// All signals that a launcher does something about.
pub fn signals() -> io::Result<Receiver<i32>> {
    interrupt::deliver(&[SIGCHLD, SIGQUIT, SIGUSR1, SIGUSR2])
}

/// Whether `signal` asks a launcher to end.
pub fn ends(signal: i32) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal)
}

/// What is done about PEs that still run.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    /// A PE has failed.
    Failed {
        first: Instant,
        latest: Instant,
    },
    /// They were asked to end, and are killed at that time.
    Ending(Instant),
    Killed,
}

/// Returns when no PE runs any more: why not all have ended well, where they have not.
pub fn supervise(children: &mut Children, signals: &Receiver<i32>) -> Option<Cause> {
    let mut stage = Stage::Running;
    let mut cause = None;
    loop {
        let ended = children.reap();
        let now = Instant::now();
        cause = cause.or_else(|| first(&ended));
        stage = match stage {
            Stage::Running if cause.is_some() => Stage::Failed { first: now, latest: now },
            Stage::Failed { first, .. } if !ended.is_empty() => Stage::Failed { first, latest: now },
            other => other,
        };
        if children.running() == 0 {
            return cause;
        }
        let due = match stage {
            Stage::Running | Stage::Killed => None,
            Stage::Failed { first, latest } => Some((latest + SETTLED).min(first + PATIENCE)),
            Stage::Ending(due) => Some(due),
        };
        if due.is_some_and(|due| due <= now) {
            stage = match stage {
                Stage::Failed { .. } => {
                    children.signal(Signal::TERM);
                    // One that was stopped would not hear it.
                    children.signal(Signal::CONT);
                    Stage::Ending(now + ASKED)
                }
                _ => {
                    children.signal(Signal::KILL);
                    Stage::Killed
                }
            };
            continue;
        }
        // The sender lives as long as the program: an error is a timeout.
        let Ok(signal) = signals.recv_timeout(due.map_or(IDLE, |due| due - now)) else {
            continue;
        };
        if signal != SIGCHLD
            && let Some(passed_on) = Signal::from_named_raw(signal)
        {
            children.signal(passed_on);
        }
        if ends(signal) {
            let patience = match cause {
                None => INTERRUPTED,
                Some(Cause::Pe { .. }) => ASKED,
                // Asked again.
                Some(Cause::Interrupted(_)) => Duration::ZERO,
            };
            stage = match stage {
                Stage::Ending(due) => Stage::Ending(due.min(now + patience)),
                Stage::Killed => Stage::Killed,
                Stage::Running | Stage::Failed { .. } => Stage::Ending(now + patience),
            };
            cause = cause.or(Some(Cause::Interrupted(signal)));
        }
    }
}

/// The first failure among PEs of whose ends the order is not known.
fn first(ended: &[(usize, End)]) -> Option<Cause> {
    let failed = || ended.iter().filter(|(_, end)| !end.is_success());
    // A PE that was killed did not end because of another one's failure.
    let killed = failed().find(|(_, end)| matches!(end, End::Killed(_)));
    killed.or_else(|| failed().next()).map(|&(pe, end)| Cause::Pe { pe, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_pe_comes_before_those_that_fail_because_of_it() {
        let cause = |ends: &[End]| first(&ends.iter().copied().enumerate().collect::<Vec<_>>());
        let (done, failed, killed) = (End::Exited(0), End::Exited(3), End::Killed(9));
        assert_eq!(cause(&[done, done]), None);
        assert_eq!(cause(&[done, failed, failed]), Some(Cause::Pe { pe: 1, end: failed }));
        assert_eq!(cause(&[failed, done, killed]), Some(Cause::Pe { pe: 2, end: killed }));
    }
}

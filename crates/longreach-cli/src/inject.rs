//! `--inject`: a fault on purpose, to see how a run fails.

use crate::args::Transport;
use crate::error::Error;
use crate::values::{MOST_SECONDS, seconds, whole};
use longreach::{Direction, MOST_PES, Plan, StageHook};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A fault and where it strikes.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// To which PE.
    pub pe: usize,
    /// In which pass.
    pub direction: Direction,
    /// Ahead of which stage's tiles.
    pub stage: usize,
}

/// What can happen to a PE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Its process is killed.
    Kill,
    /// It does nothing for that long.
    Stall(Duration),
    /// It reports an error.
    Fail,
}

/// How a fault is written.
const FORM: &str =
    "KIND@pe=N,forward|backward,stage=N with KIND kill, fail or stall, and seconds=X for stall";

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, place) = text.split_once('@').ok_or_else(|| format!("expected {FORM}"))?;
        let (mut pe, mut stage, mut seconds, mut direction) = (None, None, None, None);
        for word in place.split(',').map(str::trim) {
            match word.split_once('=') {
                Some(("pe", n)) => once(&mut pe, "pe", number("pe", n, MOST_PES - 1)?)?,
                Some(("stage", n)) => once(&mut stage, "stage", number("stage", n, usize::MAX)?)?,
                Some(("seconds", x)) => once(&mut seconds, "seconds", duration(x)?)?,
                None if word == "forward" => once(&mut direction, "a direction", Direction::Forward)?,
                None if word == "backward" => once(&mut direction, "a direction", Direction::Backward)?,
                _ => return Err(format!("`{word}` is not a part of a fault: expected {FORM}")),
            }
        }
        let kind = match (kind.trim(), seconds) {
            ("kill", None) => FaultKind::Kill,
            ("fail", None) => FaultKind::Fail,
            ("stall", Some(seconds)) => FaultKind::Stall(seconds),
            ("stall", None) => return Err("a stall needs seconds=X also".to_owned()),
            ("kill" | "fail", Some(_)) => return Err("seconds=X is for stall only: leave it out".to_owned()),
            (other, _) => return Err(format!("`{other}` is no kind of fault: expected kill, stall or fail")),
        };
        let missing = |what: &str| format!("{what} is missing: expected {FORM}");
        Ok(Self {
            kind,
            pe: pe.ok_or_else(|| missing("pe=N"))?,
            direction: direction.ok_or_else(|| missing("forward or backward"))?,
            stage: stage.ok_or_else(|| missing("stage=N"))?,
        })
    }
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is given twice: give it once")),
    }
}

fn number(name: &str, text: &str, most: usize) -> Result<usize, String> {
    whole(text, 0, most).map_err(|error| format!("{name}={text} is none: {error}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    let refused =
        || format!("seconds={text} is none: expected a number of seconds from 0 to {MOST_SECONDS:e}");
    seconds(text, 0.0).ok_or_else(refused)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Kill => "kill",
            FaultKind::Stall(_) => "stall",
            FaultKind::Fail => "fail",
        };
        write!(f, "{kind}@pe={},{},stage={}", self.pe, name(self.direction), self.stage)?;
        match self.kind {
            FaultKind::Stall(seconds) => write!(f, ",seconds={}", seconds.as_secs_f64()),
            FaultKind::Kill | FaultKind::Fail => Ok(()),
        }
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

impl Fault {
    /// Fails when a run of `plan` over `transport`, with or without a backward, has no such place or cannot have
    /// such a fault.
    pub fn check(&self, plan: &Plan, transport: Transport, backward: bool) -> Result<(), Error> {
        let refused = |why: String| Err(Error::bad("--inject", self.to_string(), why));
        let pes = plan.pes.len();
        let Some(own) = plan.pes.get(self.pe) else {
            return refused(format!("the run has PEs 0 to {}: name one of them, or raise --pes", pes - 1));
        };
        if self.direction == Direction::Backward && !backward {
            return refused("the run has no backward: add --backward".to_owned());
        }
        let stages = own.stages.len();
        if self.stage >= stages {
            return refused(format!(
                "the plan of PE {} has stages 0 to {}: name one of them, or change --stages",
                self.pe,
                stages - 1
            ));
        }
        if self.kind == FaultKind::Kill && transport == Transport::Threads {
            return refused(
                "a thread cannot be killed alone: add --transport processes, or use fail or stall".to_owned(),
            );
        }
        Ok(())
    }
}

impl Fault {
    /// What makes it happen to the PE that is given this hook, once.
    pub fn hook(&self) -> StageHook {
        let Self { kind, direction, stage, .. } = *self;
        let happened = AtomicBool::new(false);
        StageHook(Arc::new(move |at, of| {
            // Relaxed: one thread, the PE's compute stream, asks.
            if (at, of) != (direction, stage) || happened.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            match kind {
                FaultKind::Kill => die(),
                FaultKind::Fail => Err("injected failure".to_owned()),
                FaultKind::Stall(time) => {
                    std::thread::sleep(time);
                    Ok(())
                }
            }
        }))
    }
}

/// Ends this process as the system would for want of memory.
#[cfg(unix)]
fn die() -> Result<(), String> {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).map_err(|errno| format!("it cannot kill itself: {errno}"))?;
    // The signal may take another moment to arrive.
    std::thread::sleep(Duration::MAX);
    Ok(())
}

#[cfg(not(unix))]
fn die() -> Result<(), String> {
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in [
            "kill@pe=2,forward,stage=1",
            "stall@pe=1,backward,stage=0,seconds=5",
            "stall@pe=1,backward,stage=0,seconds=0.25",
            "fail@pe=0,backward,stage=12",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        let fault: Fault = "stall@seconds=2,stage=3,forward,pe=4".parse().unwrap();
        let kind = FaultKind::Stall(Duration::from_secs(2));
        assert_eq!(fault, Fault { kind, pe: 4, direction: Direction::Forward, stage: 3 });
    }

    #[test]
    fn what_is_wrong_with_a_fault_is_named() {
        for (text, part) in [
            ("", "expected KIND@"),
            ("kill", "expected KIND@"),
            ("crash@pe=0,forward,stage=0", "`crash`"),
            ("kill@forward,stage=0", "pe=N is missing"),
            ("kill@pe=0,stage=0", "forward or backward is missing"),
            ("kill@pe=0,forward", "stage=N is missing"),
            ("kill@pe=x,forward,stage=0", "pe=x"),
            ("kill@pe=-1,forward,stage=0", "pe=-1"),
            ("kill@pe=0,forward,stage=1.5", "stage=1.5"),
            ("kill@pe=0,sideways,stage=0", "`sideways`"),
            ("kill@pe=0,pe=1,forward,stage=0", "pe is given twice"),
            ("kill@pe=0,forward,backward,stage=0", "a direction is given twice"),
            ("kill@pe=0,forward,stage=0,", "``"),
            ("kill@pe=0,forward,stage=0,seconds=1", "for stall only"),
            ("stall@pe=0,forward,stage=0", "needs seconds=X"),
            ("stall@pe=0,forward,stage=0,seconds=-1", "seconds=-1"),
            ("stall@pe=0,forward,stage=0,seconds=inf", "seconds=inf"),
            ("stall@pe=0,forward,stage=0,seconds=soon", "seconds=soon"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }
}

//! Failures of a world: who failed, in what, after how long.

use std::time::Duration;

/// How a PE failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// Its process ended in mid-run.
    Died,
    /// It neither waited nor progressed for longer than the deadline.
    Stalled,
    /// It returned an error or panicked.
    Failed,
    /// It ended while others still waited for it.
    Left,
    /// It refused a call that it was part of, or its call does not agree with the others'.
    Refused,
    /// PEs wait for each other in a circle.
    Deadlock,
}

impl FailureKind {
    const ALL: [FailureKind; 6] = [
        FailureKind::Died,
        FailureKind::Stalled,
        FailureKind::Failed,
        FailureKind::Left,
        FailureKind::Refused,
        FailureKind::Deadlock,
    ];

    /// The kind that [`FailureKind::name`] calls so.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The word used in messages and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Died => "died",
            FailureKind::Stalled => "stalled",
            FailureKind::Failed => "failed",
            FailureKind::Left => "left",
            FailureKind::Refused => "refused",
            FailureKind::Deadlock => "deadlocked",
        }
    }
}

/// What somebody was waiting for, or doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation in words: `get`, `publish`, `gradient return`, `team creation` and so on.
    pub name: &'static str,
    /// The stage of the call's plan, where there is one (0 is printed where there is none).
    pub stage: Option<usize>,
    /// The call's epoch, 0 outside calls.
    pub epoch: u64,
}

impl Operation {
    /// An operation outside any call.
    pub const fn outside(name: &'static str) -> Self {
        Self { name, stage: None, epoch: 0 }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Always all three, so that whoever reads many logs finds them in the same places.
        write!(f, "{}, stage {}, epoch {}", self.name, self.stage.unwrap_or(0), self.epoch)
    }
}

/// The one failure of a world: the first, the same on every PE.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// How the PE failed.
    pub kind: FailureKind,
    /// The PE that is to blame, as its number in the world.
    pub pe: usize,
    /// What it was waited for, or what it was doing.
    pub operation: Operation,
    /// How long it was waited for, or had been doing that.
    pub waited: Duration,
    /// The PE's own words, or an explanation.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { kind, pe, operation, waited, .. } = self;
        write!(f, "PE {pe} {} during {operation}, after {:.1} s", kind.name(), waited.as_secs_f64())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

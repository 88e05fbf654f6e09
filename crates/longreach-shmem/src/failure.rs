//! Failures of a world, and the errors of this crate.

use std::sync::Arc;
use std::time::Duration;

/// How a PE failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
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
    /// The word used in messages and JSON.
    pub const fn name(self) -> &'static str {
        match self {
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
    /// The stage of the call's plan, where there is one.
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
        f.write_str(self.name)?;
        if let Some(stage) = self.stage {
            write!(f, ", stage {stage}")?;
        }
        if self.epoch > 0 {
            write!(f, ", epoch {}", self.epoch)?;
        }
        Ok(())
    }
}

/// The one failure of a world: the first, the same on every PE.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// How the PE failed.
    pub kind: FailureKind,
    /// The PE that is to blame, as its number in the world.
    pub pe: usize,
    /// What it was waited for, or what it was doing; none outside longreach's own operations.
    pub operation: Option<Operation>,
    /// How long it was waited for.
    pub waited: Option<Duration>,
    /// The PE's own words, or an explanation.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PE {} {}", self.pe, self.kind.name())?;
        if let Some(operation) = &self.operation {
            write!(f, " during {operation}")?;
        }
        if let Some(waited) = self.waited {
            write!(f, ", after {:.1} s", waited.as_secs_f64())?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// An error of symmetric memory.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The world has failed; nothing works in it any more.
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// An error of the device.
    #[error("{0}")]
    Device(longreach_device::Error),
    /// A world of no PEs was asked for.
    #[error("a world of 0 PEs was asked for: it needs at least 1")]
    NoPes,
    /// A thread of a PE could not be started.
    #[error("the thread of PE {pe} could not be started: {reason}")]
    NoThread {
        /// The PE.
        pe: usize,
        /// What the operating system said.
        reason: String,
    },
    /// A world of that name exists in this process and is another one.
    #[error(
        "world `{name}` exists with {have} PEs and was asked for again with {asked}: use another name, or ask for {have} PEs"
    )]
    WorldExists {
        /// The name.
        name: String,
        /// PEs of the existing world.
        have: usize,
        /// PEs that were asked for.
        asked: usize,
    },
    /// The ranks of a team do not make one.
    #[error("team {ranks:?} of PE {pe} in a world of {pes}: {reason}")]
    BadTeam {
        /// The ranks given.
        ranks: Vec<usize>,
        /// The PE that asked.
        pe: usize,
        /// PEs of the world.
        pes: usize,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A collective call was made with values that differ between the PEs.
    #[error(
        "{what} differs between PEs: team rank {first} gave {first_value}, team rank {second} gave {second_value}; all must give the same"
    )]
    Disagreement {
        /// What was to be the same.
        what: &'static str,
        /// A team rank.
        first: usize,
        /// Its value.
        first_value: String,
        /// Another team rank.
        second: usize,
        /// Its value.
        second_value: String,
    },
    /// PEs of a team make collective calls in different orders.
    #[error(
        "PEs of a team are in different collective calls: team rank {first} in {first_call}, team rank {second} in {second_call}; all must make the same calls in the same order"
    )]
    OutOfStep {
        /// A team rank.
        first: usize,
        /// Its call.
        first_call: &'static str,
        /// Another team rank.
        second: usize,
        /// Its call.
        second_call: &'static str,
    },
    /// Symmetric memory could not be had.
    #[error("team rank {rank} could not allocate {bytes} bytes of symmetric memory: ask for less")]
    OutOfMemory {
        /// The team rank that could not.
        rank: usize,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A transfer reaches beyond a symmetric buffer.
    #[error("bytes {offset}..{offset}+{len} reach beyond the symmetric buffer's {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Bytes of the buffer or view.
        size: usize,
    },
    /// A team rank that the team does not have.
    #[error("team rank {rank} was named, the team has {size} PEs")]
    NoSuchRank {
        /// The rank given.
        rank: usize,
        /// PEs of the team.
        size: usize,
    },
}

impl From<longreach_device::Error> for Error {
    fn from(error: longreach_device::Error) -> Self {
        // A stream carries this crate's own errors as faults: give them back as what they were.
        if let longreach_device::Error::Fault(fault) = &error
            && let Some(own) = fault.downcast_ref::<Error>()
        {
            return own.clone();
        }
        Error::Device(error)
    }
}

impl Error {
    /// The error as what stops a stream.
    pub fn into_fault(self) -> longreach_device::Fault {
        Arc::new(self)
    }
}

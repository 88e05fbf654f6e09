//! How a PE's process ended, and the one status that all of them fold into.

use signal_hook::low_level::signal_name;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl End {
    /// From what the system tells of a child that has ended.
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            // Only a stopped or continued child has neither, and those are not asked for.
            (None, None) => Self::Exited(1),
        }
    }

    /// Whether it ended as it should.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The status that a shell would give it.
    pub fn status(self) -> u8 {
        let status = match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        };
        u8::try_from(status).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with status {code}"),
            Self::Killed(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was killed by signal {signal} ({name})"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// What ended a launch before all of its PEs had ended by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A PE failed, before any other one.
    Pe {
        /// Which.
        pe: usize,
        /// How.
        end: End,
    },
    /// The launcher was told to end.
    Interrupted(
        /// By this signal.
        i32,
    ),
}

impl Cause {
    /// The launch's exit status.
    pub fn status(self) -> u8 {
        match self {
            Self::Pe { end, .. } => end.status(),
            Self::Interrupted(signal) => End::Killed(signal).status(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_the_statuses_and_words_of_a_shell() {
        let killed = End::Killed(9);
        assert_eq!((killed.status(), killed.to_string().as_str()), (137, "was killed by signal 9 (SIGKILL)"));
        let failed = End::Exited(3);
        assert_eq!((failed.status(), failed.to_string().as_str()), (3, "exited with status 3"));
        assert_eq!(End::Killed(40).to_string(), "was killed by signal 40");
        assert!(End::Exited(0).is_success() && !killed.is_success() && !failed.is_success());
        assert_eq!(Cause::Interrupted(15).status(), 143);
    }

    #[test]
    fn wait_statuses_are_told_apart() {
        assert_eq!(End::of(ExitStatus::from_raw(9)), End::Killed(9));
        assert_eq!(End::of(ExitStatus::from_raw(7 << 8)), End::Exited(7));
    }
}

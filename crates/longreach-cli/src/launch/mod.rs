//! A process for each PE: started together, watched, and ended together.

mod cause;
mod child;
pub mod command;
mod environment;
mod lines;
pub mod own;
mod pump;
mod supervise;

pub use cause::{Cause, End};

use crate::error::Error;
use child::{Children, Files};
use environment::Environment;
use pump::Pump;
use std::ffi::OsString;
use supervise::supervise;

/// What becomes of what the PEs print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It goes where this process's own goes, untouched.
    Inherited,
    /// It goes there in whole lines, each with its PE in front.
    Prefixed,
}

/// A program to run as several PEs.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program: a path, or a name to be looked for in PATH.
    pub program: OsString,
    /// Its arguments, the same for every PE.
    pub arguments: Vec<OsString>,
    /// How many PEs, at least 1.
    pub pes: usize,
    /// What becomes of their output.
    pub output: Output,
}

/// How a launch ended.
#[derive(Debug)]
pub struct Outcome {
    /// How each PE ended, in PE order.
    pub ends: Vec<End>,
    /// Why it did not end well, where it did not.
    pub cause: Option<Cause>,
    /// Why output of the PEs was lost, where it was.
    pub lost: Option<std::io::Error>,
}

impl Launch {
    /// Runs the PEs until all have ended, and nothing that they have started is left in their process groups.
    ///
    /// Call it on the main thread: the system kills the PEs when the thread that has started them ends. Signals that
    /// reach this process meanwhile are passed on. Fails, with nothing left running, when a PE cannot be started.
    pub fn run(&self) -> Result<Outcome, Error> {
        let cannot = |error: std::io::Error| Error::Run(format!("processes cannot be started: {error}"));
        let signals = supervise::signals().map_err(cannot)?;
        let environment = Environment::new(self.pes).map_err(cannot)?;
        let files = Files::for_pes(self.pes, self.output)?;
        let mut children = Children::start(self, &environment, &files)?;
        let pump = Pump::start(children.outputs()).map_err(cannot)?;
        let cause = supervise(&mut children, &signals);
        Ok(Outcome { ends: children.ends(), cause, lost: pump.finish(&signals) })
    }
}

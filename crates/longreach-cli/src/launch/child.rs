//! Processes of PEs: each leads a process group of its own and dies with the launcher.

use super::pump::Source;
use super::{End, Environment, Launch, Output};
use crate::error::{Error, is_shortage};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process_group, setrlimit, waitid,
};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The bound on open files, raised for the launcher where its pipes need it.
pub struct Files {
    /// What the PEs get back.
    own: Option<Rlimit>,
}

impl Files {
    /// Open files beside the pipes of the PEs.
    const OTHERS: u64 = 64;

    /// Room for the output of `pes` PEs. Fails when there cannot be any.
    pub fn for_pes(pes: usize, output: Output) -> Result<Self, Error> {
        let limit = getrlimit(Resource::Nofile);
        let needed = 2 * pes as u64 + Self::OTHERS;
        if output == Output::Inherited || limit.current.is_none_or(|current| current >= needed) {
            return Ok(Self { own: None });
        }
        let refused = |why: String| Error::bad("-n", pes.to_string(), why);
        if let Some(maximum) = limit.maximum.filter(|&maximum| maximum < needed) {
            return Err(refused(format!(
                "so many PEs need {needed} open files and this process may have {maximum}: ask for fewer, or raise ulimit -Hn"
            )));
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit })
            .map_err(|error| refused(format!("{needed} open files were not granted: {error}")))?;
        Ok(Self { own: Some(limit) })
    }
}

/// The PEs that have been started, in PE order.
pub struct Children {
    children: Vec<Child>,
    ends: Vec<Option<End>>,
}

impl Children {
    /// Starts all PEs of `launch`. When one cannot be started, those before it are killed.
    pub fn start(launch: &Launch, environment: &Environment, files: &Files) -> Result<Self, Error> {
        let mut started = Self { children: Vec::with_capacity(launch.pes), ends: vec![None; launch.pes] };
        for pe in 0..launch.pes {
            match spawn(launch, environment, files, pe) {
                Ok(child) => started.children.push(child),
                Err(error) => {
                    started.ends.truncate(pe);
                    started.signal(Signal::KILL);
                    while started.running() > 0 {
                        started.wait_for_any();
                        started.reap();
                    }
                    return Err(cannot_start(launch, pe, &error));
                }
            }
        }
        Ok(started)
    }

    /// Takes the ends of the PEs' pipes.
    pub fn outputs(&mut self) -> Vec<Source> {
        let taken = |(pe, child): (usize, &mut Child)| {
            let out = child.stdout.take().map(|pipe| Source::stdout(pe, pipe.into()));
            let err = child.stderr.take().map(|pipe| Source::stderr(pe, pipe.into()));
            out.into_iter().chain(err)
        };
        self.children.iter_mut().enumerate().flat_map(taken).collect()
    }

    /// PEs that have not ended.
    pub fn running(&self) -> usize {
        self.ends.iter().filter(|end| end.is_none()).count()
    }

    /// How all PEs have ended, once none is running.
    pub fn ends(&self) -> Vec<End> {
        self.ends.iter().flatten().copied().collect()
    }

    /// Sends `signal` to the process groups of the PEs that run.
    pub fn signal(&self, signal: Signal) {
        for (child, end) in self.children.iter().zip(&self.ends) {
            if end.is_none() {
                // A group that has ended meanwhile needs no signal, and one that may not be signalled cannot be helped.
                let _ = kill_process_group(Pid::from_child(child), signal);
            }
        }
    }

    /// The PEs that have ended since the last call, and how.
    pub fn reap(&mut self) -> Vec<(usize, End)> {
        let mut ended = Vec::new();
        for (pe, child) in self.children.iter_mut().enumerate() {
            if self.ends[pe].is_none()
                && let Some(end) = reap(child)
            {
                self.ends[pe] = Some(end);
                ended.push((pe, end));
            }
        }
        ended
    }

    /// Blocks until a PE that is not reaped yet has ended.
    fn wait_for_any(&self) {
        let unended = self.children.iter().zip(&self.ends).find(|(_, end)| end.is_none());
        if let Some((child, _)) = unended {
            // Without a report there is nothing to wait for.
            let _ =
                waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
    }
}

fn spawn(launch: &Launch, environment: &Environment, files: &Files, pe: usize) -> io::Result<Child> {
    let mut command = Command::new(&launch.program);
    command.args(&launch.arguments).stdin(Stdio::null()).process_group(0);
    if launch.output == Output::Prefixed {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    environment.give(&mut command, pe);
    let own_files = files.own;
    #[cfg(target_os = "linux")]
    let launcher = rustix::process::getpid();
    let prepare = move || {
        #[cfg(target_os = "linux")]
        die_with(launcher)?;
        own_files.map_or(Ok(()), |limit| Ok(setrlimit(Resource::Nofile, limit)?))
    };
    // SAFETY: between fork and exec `prepare` makes system calls only: it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Has the system kill this process when the thread of `launcher` that has started it ends.
#[cfg(target_os = "linux")]
fn die_with(launcher: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before the line above: then nobody would send the signal.
    if rustix::process::getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

/// How `child` has ended, if it has. What is left of its process group is killed.
fn reap(child: &mut Child) -> Option<End> {
    let pid = Pid::from_child(child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if let Ok(None) = waitid(WaitId::Pid(pid), options) {
        return None;
    }
    // Before the leader is reaped: until then no other group can have its number.
    let _ = kill_process_group(pid, Signal::KILL);
    // A child that cannot be waited for is not there any more: somebody else must have reaped it.
    child.wait().map_or(Some(End::Exited(1)), |status| Some(End::of(status)))
}

fn cannot_start(launch: &Launch, pe: usize, error: &io::Error) -> Error {
    let program = launch.program.display().to_string();
    let bad = |why: &str| Error::bad("PROGRAM", program.as_str(), why);
    match error.kind() {
        ErrorKind::NotFound => {
            bad("no such program (or no interpreter for it): give a path, or a name that PATH has")
        }
        ErrorKind::PermissionDenied => bad("cannot be executed: make it executable, or name its interpreter"),
        // What the machine does not give is no fault of the program's.
        _ if pe == 0 && !is_shortage(error) => bad(&format!("cannot be started: {error}")),
        _ => Error::Run(format!(
            "PE {pe} of {} could not be started: {error}; ask for fewer PEs, or raise the limit (ulimit -u, -n, -v)",
            launch.pes
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_does_not_give_is_no_fault_of_the_program() {
        let (program, arguments) = ("program".into(), Vec::new());
        let launch = Launch { program, arguments, pes: 2, output: Output::Inherited };
        let of = |pe, kind: ErrorKind| cannot_start(&launch, pe, &kind.into());
        for kind in [ErrorKind::OutOfMemory, ErrorKind::WouldBlock] {
            assert!(matches!(of(0, kind), Error::Run(_)) && matches!(of(1, kind), Error::Run(_)), "{kind}");
        }
        for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::ArgumentListTooLong] {
            assert!(matches!(of(0, kind), Error::Bad { .. }), "{kind}");
        }
    }
}

//! Carries the PEs' output, line by line, to where this process's own goes.

use super::lines::Lines;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long output is waited for after the last PE has ended: a process that has left its PE's group may hold it open
/// for ever.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// One output of one PE.
#[derive(Debug)]
pub struct Source {
    pipe: File,
    lines: Lines,
    to: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    Stderr,
}

impl Source {
    /// Standard output of PE `pe`.
    pub fn stdout(pe: usize, pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), lines: Lines::of(pe), to: Target::Stdout }
    }

    /// Standard error of PE `pe`.
    pub fn stderr(pe: usize, pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), lines: Lines::of(pe), to: Target::Stderr }
    }
}

impl Target {
    fn write(self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(text)?;
                stdout.flush()
            }
            Self::Stderr => io::stderr().lock().write_all(text),
        }
    }
}

/// The thread that carries output.
pub struct Pump {
    thread: JoinHandle<Option<io::Error>>,
    /// Closed when all PEs have ended.
    running: UnixStream,
}

impl Pump {
    /// Starts carrying what comes from `sources`.
    pub fn start(sources: Vec<Source>) -> io::Result<Self> {
        let (running, ended) = UnixStream::pair()?;
        let thread =
            std::thread::Builder::new().name("output".to_owned()).spawn(move || carry(sources, &ended))?;
        Ok(Self { thread, running })
    }

    /// Ends when all output of the PEs, which have ended, has been carried; tells why some was lost, if it was.
    ///
    /// A reader of this process's output that takes its time is waited for, unless a signal arrives.
    pub fn finish(self, signals: &Receiver<i32>) -> Option<io::Error> {
        drop(self.running);
        while !self.thread.is_finished() {
            match signals.recv_timeout(Duration::from_millis(5)) {
                Ok(signal) if super::supervise::ends(signal) => return None,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.thread.join().unwrap_or_else(|_| Some(io::Error::other("the thread that prints has panicked")))
    }
}

fn carry(mut sources: Vec<Source>, ended: &UnixStream) -> Option<io::Error> {
    let mut lost = None;
    let mut piece = vec![0; 1 << 16];
    let mut text = Vec::new();
    let mut pes_run = true;
    while !sources.is_empty() {
        let mut polled: Vec<PollFd> =
            sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
        polled.push(PollFd::new(ended, PollFlags::IN));
        if !pes_run {
            polled.pop();
        }
        let found = match poll(&mut polled, (!pes_run).then_some(&QUIET)) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Some(error.into()),
            Ok(found) => found,
        };
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if found == 0 {
            break;
        }
        pes_run &= ready.get(sources.len()) != Some(&true);
        let mut closed = [false; 2];
        let mut ready = ready.into_iter();
        sources.retain_mut(|source| {
            if ready.next() != Some(true) {
                return true;
            }
            let open = match source.pipe.read(&mut piece) {
                Ok(0) => false,
                Ok(length) => {
                    source.lines.push(&piece[..length], &mut text);
                    true
                }
                Err(error) => error.kind() == ErrorKind::Interrupted,
            };
            if !open {
                source.lines.finish(&mut text);
            }
            closed[source.to as usize] |= !put(source.to, &mut text, &mut lost);
            open
        });
        // As if the PEs wrote themselves: when nobody reads any more, they learn of it.
        sources.retain(|source| !closed[source.to as usize]);
    }
    for mut source in sources {
        source.lines.finish(&mut text);
        put(source.to, &mut text, &mut lost);
    }
    lost
}

/// Writes `text` and empties it; false when nobody can read it.
fn put(to: Target, text: &mut Vec<u8>, lost: &mut Option<io::Error>) -> bool {
    let written = if text.is_empty() { Ok(()) } else { to.write(text) };
    text.clear();
    let Err(error) = written else {
        return true;
    };
    // A reader that has gone away has all that it wanted.
    if error.kind() != ErrorKind::BrokenPipe && lost.is_none() {
        *lost = Some(error);
    }
    false
}

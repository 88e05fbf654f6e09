//! What is going on, on stderr: a line a step, and from time to time how far the step has come.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Says how far a step has come.
type Status = Box<dyn Fn() -> String + Send>;

/// Reports steps; a step's line is finished with the time that it took.
pub struct Progress {
    start: Instant,
    shown: bool,
    /// On a terminal a step's line is written anew; elsewhere lines only follow each other.
    terminal: bool,
    status: Mutex<Option<Status>>,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { start: Instant::now(), shown: true, terminal, status: Mutex::new(None) }
    }

    /// Shows nothing: another process does.
    pub fn hidden() -> Self {
        Self { shown: false, ..Self::new() }
    }

    /// Runs a step under a line that says what it is.
    pub fn step<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        if !self.shown {
            return work();
        }
        let begin = Instant::now();
        self.line(&format!("{what} ..."), false);
        let (working, ended) = channel::<()>();
        let result = std::thread::scope(|scope| {
            // Where there is no thread for it, the step goes on without being shown.
            let shows = std::thread::Builder::new().spawn_scoped(scope, move || {
                // Nothing is ever sent: the channel closes when the work ends, however it ends.
                while ended.recv_timeout(self.interval()) == Err(RecvTimeoutError::Timeout) {
                    let status = self.status().as_ref().map(|status| status());
                    let status = status.unwrap_or_default();
                    let seconds = begin.elapsed().as_secs_f64();
                    self.line(&format!("{what} ... {seconds:.1} s {status}"), false);
                }
            });
            let _working = shows.is_ok().then_some(working);
            work()
        });
        *self.status() = None;
        let seconds = begin.elapsed().as_secs_f64();
        self.line(&format!("{what}: {seconds:.2} s"), true);
        result
    }

    /// Lets the step that is running tell how far it has come.
    pub fn show(&self, status: impl Fn() -> String + Send + 'static) {
        *self.status() = Some(Box::new(status));
    }

    fn status(&self) -> MutexGuard<'_, Option<Status>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interval(&self) -> Duration {
        if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(10) }
    }

    fn line(&self, text: &str, last: bool) {
        let elapsed = self.start.elapsed().as_secs_f64();
        let line = format!("[{elapsed:7.2} s] {text}");
        let line = match (self.terminal, last) {
            (false, _) => format!("{line}\n"),
            (true, false) => format!("\r\x1b[2K{line}"),
            (true, true) => format!("\r\x1b[2K{line}\n"),
        };
        // Progress that cannot be shown is no reason to stop working.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

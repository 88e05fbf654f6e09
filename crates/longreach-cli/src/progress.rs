//! What is going on, on stderr, one line a step.

use std::io::Write;
use std::time::Instant;

/// Reports steps; a step's line is finished with the time that it took.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Runs a step under a line that says what it is.
    pub fn step<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        self.line(&format!("{what} ..."));
        let result = work();
        self.line(&format!("{what}: {:.2} s", begin.elapsed().as_secs_f64()));
        result
    }

    fn line(&self, text: &str) {
        let elapsed = self.start.elapsed().as_secs_f64();
        // Progress that cannot be shown is no reason to stop working.
        let _ = writeln!(std::io::stderr().lock(), "[{elapsed:7.2} s] {text}");
    }
}

//! What a run has left behind. Runs are told apart by a variable in their environment, which their processes inherit.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Marks the processes of one run.
pub struct Mark(String);

const NAME: &str = "LONGREACH_TEST_MARK";

impl Mark {
    /// Has the processes that `command` starts carry a mark of their own.
    pub fn on(command: &mut Command) -> Self {
        static MARKS: AtomicUsize = AtomicUsize::new(0);
        let number = MARKS.fetch_add(1, Ordering::Relaxed);
        let value = format!("{}-{number}", std::process::id());
        command.env(NAME, &value);
        Self(format!("{NAME}={value}"))
    }

    /// The processes that run with the mark.
    pub fn processes(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            // A process that has gone meanwhile has nothing, and a dead one that is not reaped is empty.
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables.split(|&byte| byte == 0).any(|variable| variable == self.0.as_bytes())
        })
        .collect()
    }

    /// Waits until `count` processes run with the mark, and gives them.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<i32> {
        let start = Instant::now();
        loop {
            let processes = self.processes();
            if processes.len() == count {
                return processes;
            }
            let found = processes.len();
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{found} processes, not {count}: {processes:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

//! What a run has left behind. Runs are told apart by a variable in their environment, which their processes inherit.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Marks the processes of one run.
pub struct Mark(String);

const NAME: &str = "LONGREACH_TEST_MARK";

/// The environment that a process was started with. One that has gone meanwhile has none, nor has a dead one that is
/// not reaped.
fn variables(pid: i32) -> Vec<String> {
    let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.split(|&byte| byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

/// Names of the sockets at which PEs of worlds meet.
fn worlds() -> BTreeSet<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.filter(|name| name.starts_with("@longreach/")).map(str::to_owned).collect()
}

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
        pids.filter(|pid| variables(*pid).contains(&self.0)).collect()
    }

    /// Waits until nothing of the run is left: no process, and with the processes no memory file, which goes with the
    /// last that has it; no socket of any world that is there now; nothing in shared-memory folders.
    #[track_caller]
    pub fn nothing_left(&self) {
        self.wait_for(0);
        let start = Instant::now();
        let mut sockets = worlds();
        // Runs beside this one have worlds of their own, which end.
        while !sockets.is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
            let now = worlds();
            sockets.retain(|socket| now.contains(socket));
        }
        assert_eq!(sockets, BTreeSet::new());
        let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().filter_map(Result::ok);
        let ours = |name: &str| name.contains("longreach");
        assert!(!shared.into_iter().any(|entry| ours(&entry.file_name().to_string_lossy())));
    }

    /// The process of PE `pe` of the run, once it is there.
    #[track_caller]
    pub fn pe(&self, pe: usize) -> i32 {
        let start = Instant::now();
        let wanted = format!("LONGREACH_PE={pe}");
        loop {
            let mut processes = self.processes().into_iter();
            if let Some(process) = processes.find(|pid| variables(*pid).contains(&wanted)) {
                return process;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no process of PE {pe}");
            std::thread::sleep(Duration::from_millis(2));
        }
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

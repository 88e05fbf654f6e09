//! Runs closures in forked processes, for the tests of the other crates.
//!
//! A forked child has the parent's memory, and so a closure's captures, but only the thread that forked. What another
//! thread held at that moment, a lock say, is held in the child for ever. So a test that forks runs alone: tests of
//! this kind are run with `--test-threads=1`, and [`fork`] refuses to fork while another thread is at work. Threads
//! that sleep, as those of an idle pool do, hold nothing; the child does not have them. It starts its own.
#![cfg(target_os = "linux")]

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// No test needs longer: a child that is still there has hung, and is killed.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The closure returned these bytes.
    Returned(Vec<u8>),
    /// It panicked, in these words.
    Panicked(String),
    /// The process ended by itself with this status, without returning.
    Exited(i32),
    /// A signal ended the process.
    Signalled(i32),
    /// It had not ended after two minutes, and was killed.
    Hung,
}

/// A child that runs or has ended; one that still runs when this is dropped is killed.
pub struct Child {
    pid: libc::pid_t,
    output: PipeReader,
    ended: bool,
}

/// Runs `work` in a child process.
///
/// # Panics
/// Where another thread of this process does not come to rest, and where it cannot fork.
pub fn fork(work: impl FnOnce() -> Vec<u8>) -> Child {
    assert!(alone(), "fork while no other thread is at work: run these tests with --test-threads=1");
    let (output, input) = std::io::pipe().expect("a pipe");
    let parent = std::process::id();
    // SAFETY: no other thread is at work, which is when one holds a lock.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            drop(output);
            child(parent, input, work)
        }
        pid => Child { pid, output, ended: false },
    }
}

/// Runs `work` in as many children as `pes`, with their numbers, and returns how they ended, in order.
pub fn forked(pes: usize, work: impl Fn(usize) -> Vec<u8>) -> Vec<End> {
    let children: Vec<Child> = (0..pes).map(|pe| fork(|| work(pe))).collect();
    children.into_iter().map(Child::wait).collect()
}

fn child(parent: u32, mut input: PipeWriter, work: impl FnOnce() -> Vec<u8>) -> ! {
    // SAFETY: plain system calls. A test that is killed takes its children with it, also one that died already.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(1);
        }
    }
    let (tag, bytes) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(bytes) => (b'r', bytes),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (b'p', text.unwrap_or_default().into_bytes())
        }
    };
    let written = input.write_all(&[&[tag], &bytes[..]].concat()).is_ok();
    // Not `exit`: the parent's buffers and handlers are not the child's to flush and run.
    // SAFETY: a plain system call.
    unsafe { libc::_exit(if written { 0 } else { 1 }) }
}

impl Child {
    /// The process's number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the child a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0, "{}", std::io::Error::last_os_error());
    }

    /// Waits until the child has ended.
    pub fn wait(mut self) -> End {
        let bytes = self.read(Instant::now() + PATIENCE);
        let Some(bytes) = bytes else {
            self.signal(libc::SIGKILL);
            self.reap();
            return End::Hung;
        };
        let status = self.reap();
        match bytes.split_first() {
            _ if libc::WIFSIGNALED(status) => End::Signalled(libc::WTERMSIG(status)),
            Some((b'r', bytes)) => End::Returned(bytes.to_vec()),
            Some((b'p', text)) => End::Panicked(String::from_utf8_lossy(text).into_owned()),
            _ => End::Exited(libc::WEXITSTATUS(status)),
        }
    }

    /// All that the child has written until it ended; none where it takes longer than `until`.
    fn read(&mut self, until: Instant) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 1 << 16];
        loop {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            let mut fd = libc::pollfd { fd: self.output.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, alive for the call.
            if unsafe { libc::poll(&mut fd, 1, left as i32) } == 0 {
                return None;
            }
            match self.output.read(&mut piece) {
                Ok(0) => return Some(bytes),
                Ok(len) => bytes.extend(&piece[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("a child's pipe: {error}"),
            }
        }
    }

    fn reap(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: it is this process's child and has not been waited for; `status` lives through the call.
        let reaped = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(reaped, self.pid, "{}", std::io::Error::last_os_error());
        self.ended = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(libc::SIGKILL);
            self.reap();
        }
    }
}

/// Whether all other threads of this process sleep, or soon do.
fn alone() -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        if at_work() <= 1 {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads that do not sleep: this one, and others.
fn at_work() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
        // The state stands behind the name, which may have brackets in it.
        .filter(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")))
        .count()
}

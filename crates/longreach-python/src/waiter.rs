//! Waiting that Python's signals can interrupt.

use crate::error::refused;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// How often Python is asked whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);

/// A thread that blocks in place of Python's.
pub struct Waiter {
    jobs: Sender<Job>,
}

impl Waiter {
    /// Starts the thread; it ends when the waiter is dropped and its work is done.
    pub fn start(name: &str) -> PyResult<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || queue.into_iter().for_each(|job| job());
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map_err(|error| refused(format!("the thread `{name}` could not be started: {error}")))?;
        Ok(Self { jobs })
    }

    /// Has the thread do `job`, behind all that it was given before.
    pub fn send(&self, job: impl FnOnce() + Send + 'static) -> PyResult<()> {
        self.jobs.send(Box::new(job)).map_err(|_| refused("the waiting thread has ended"))
    }

    /// Runs `job` on the thread and returns what it returns. Python runs meanwhile; when a signal raises an exception
    /// there, `interrupted` is called, which has to bring the job to its end, and the exception is returned.
    pub fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        interrupted: impl FnOnce(),
        job: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        let (done, mut result) = channel();
        // Who was interrupted does not take the result.
        self.send(move || drop(done.send(job())))?;
        loop {
            let (receiver, received) = py.detach(move || receive(result));
            result = receiver;
            match received {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(exception) = py.check_signals() {
                        interrupted();
                        return Err(exception);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(refused("the work panicked; its message is on stderr"));
                }
            }
        }
    }
}

fn receive<T>(result: Receiver<T>) -> (Receiver<T>, Result<T, RecvTimeoutError>) {
    let received = result.recv_timeout(LOOK);
    (result, received)
}

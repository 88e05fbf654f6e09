//! The one thread that calls NVSHMEM, which allows one at a time.

use super::Failed;
use super::library::Library;
use crate::error::Error;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce(&Library) + Send>;

/// A handle of the thread. The thread may be in a call that never ends, where a peer is gone: nobody waits for it then.
pub(crate) struct Owner {
    jobs: Sender<Job>,
    deadline: Duration,
}

/// How often who waits looks whether that has become pointless.
const LOOK: Duration = Duration::from_millis(20);

impl Owner {
    /// Starts the thread; calls that take longer than `deadline` are given up.
    pub(crate) fn start(library: Library, deadline: Duration) -> Result<Self, Error> {
        let (jobs, work) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("nvshmem".to_owned())
            .spawn(move || work.into_iter().for_each(|job| job(&library)))
            .map_err(|error| Error::Nvshmem(format!("its thread could not be started: {error}")))?;
        Ok(Self { jobs, deadline })
    }

    /// Runs `work` on the thread and waits for it, until the deadline or until `failed` tells of a failure.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        failed: Failed,
        work: impl FnOnce(&Library) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let gone = || Error::Nvshmem(format!("the thread that was to call {call} is gone"));
        let (done, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |library| {
            // Who asked may have given up.
            let _ = done.send(work(library));
        });
        self.jobs.send(job).map_err(|_| gone())?;
        let begin = Instant::now();
        loop {
            match result.recv_timeout(LOOK) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(failure) = failed() {
                return Err(failure);
            }
            if begin.elapsed() > self.deadline {
                return Err(Error::Nvshmem(format!(
                    "{call} has not come back within {:.1} s: a PE that takes part in it is late or gone",
                    self.deadline.as_secs_f64()
                )));
            }
        }
    }
}

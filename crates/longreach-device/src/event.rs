//! Events: a point of a stream's time that others can wait for.

use crate::cuda;
use crate::error::Fault;
use crate::sync::{Arc, Condvar, Mutex, lock, wait};
use std::time::Duration;

/// How often a GPU is asked whether it has come to an event.
const SHORTEST: Duration = Duration::from_micros(5);
const LONGEST: Duration = Duration::from_micros(200);

/// A point in the order of a stream: it completes when all work queued before it has run, or has been skipped
/// because the stream failed.
///
/// The worker of a GPU's stream *reaches* an event when it has given the GPU all work before it; the event completes
/// when the GPU has done that work. Other streams of the GPU are ordered behind it on the GPU, without a host waiting.
///
/// Waiting for an event needs no deadline of its own. A stream always reaches its events, since whatever its work
/// waits for from other PEs has a deadline there.
#[derive(Clone, Debug)]
pub struct Event {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stream: std::sync::Arc<str>,
    reached: Mutex<Option<Reached>>,
    changed: Condvar,
}

/// What a stream's worker leaves when it comes to an event.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    /// Whether the work before it ran, or was given to the GPU.
    pub(crate) outcome: Result<(), Fault>,
    /// Where the GPU has to come to, on a stream of a GPU.
    pub(crate) mark: Option<cuda::Event>,
}

impl Reached {
    fn is_complete(&self) -> bool {
        self.mark.as_ref().is_none_or(cuda::Event::is_complete)
    }
}

impl Event {
    pub(crate) fn new(stream: std::sync::Arc<str>) -> Self {
        Self { inner: Arc::new(Inner { stream, reached: Mutex::new(None), changed: Condvar::new() }) }
    }

    /// An event that has already completed, in the name of `stream`.
    pub(crate) fn completed(stream: std::sync::Arc<str>) -> Self {
        let event = Self::new(stream);
        event.complete(Ok(()), None);
        event
    }

    /// Name of the stream whose work the event stands for.
    pub fn stream(&self) -> &std::sync::Arc<str> {
        &self.inner.stream
    }

    pub(crate) fn complete(&self, outcome: Result<(), Fault>, mark: Option<cuda::Event>) {
        *lock(&self.inner.reached) = Some(Reached { outcome, mark });
        self.inner.changed.notify_all();
    }

    /// What the stream left at the event, if it has come there.
    pub(crate) fn reached(&self) -> Option<Reached> {
        lock(&self.inner.reached).clone()
    }

    /// Blocks the calling thread until the stream has come to the event.
    pub(crate) fn reach(&self) -> Reached {
        let mut reached = lock(&self.inner.reached);
        loop {
            if let Some(reached) = reached.as_ref() {
                return reached.clone();
            }
            reached = wait(&self.inner.changed, reached);
        }
    }

    /// Whether the event has completed, and how.
    pub fn query(&self) -> Option<Result<(), Fault>> {
        self.reached().filter(Reached::is_complete).map(|reached| reached.outcome)
    }

    /// Blocks the calling thread until the event completes, or until `failed` tells of a failure: what a GPU waits for
    /// may be work of another process, which may be dead.
    pub fn synchronize_unless(&self, failed: impl Fn() -> Option<Fault>) -> Result<(), Fault> {
        let Reached { outcome, mark } = self.reach();
        outcome?;
        let Some(mark) = mark else { return Ok(()) };
        let mut pause = SHORTEST;
        while !mark.query().map_err(crate::Error::into_fault)? {
            if let Some(failure) = failed() {
                return Err(failure);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
        Ok(())
    }

    /// Blocks the calling thread until the event completes.
    pub fn synchronize(&self) -> Result<(), Fault> {
        let Reached { outcome, mark } = self.reach();
        outcome?;
        match mark {
            None => Ok(()),
            Some(mark) => mark.synchronize().map_err(crate::Error::into_fault),
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    //! All interleavings of an event's completion and its waiters. Run with
    //! `RUSTFLAGS="--cfg loom" cargo test --release -p longreach-device --lib`.
    use super::*;
    use crate::sync::thread;
    use loom::cell::UnsafeCell;

    struct Value(UnsafeCell<u64>);

    // SAFETY: the event orders all access; that is what the models below check.
    unsafe impl Sync for Value {}
    // SAFETY: as above.
    unsafe impl Send for Value {}

    fn read_by_two(synchronize: bool) {
        loom::model(move || {
            let (event, value) = (Event::new("producer".into()), Arc::new(Value(UnsafeCell::new(0))));
            let readers = [(); 2].map(|()| {
                let (event, value) = (event.clone(), value.clone());
                thread::spawn(move || {
                    if synchronize {
                        event.synchronize().unwrap();
                    }
                    // SAFETY: checked by loom: the producer is done.
                    assert_eq!(value.0.with(|value| unsafe { *value }), 7);
                })
            });
            // SAFETY: checked by loom: nobody reads before the event.
            value.0.with_mut(|value| unsafe { *value = 7 });
            event.complete(Ok(()), None);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }

    #[test]
    fn what_was_written_before_an_event_is_read_after_it() {
        read_by_two(true);
    }

    #[test]
    #[should_panic]
    fn without_the_wait_for_the_event_the_model_fails() {
        read_by_two(false);
    }
}

//! Events: a point of a stream's time that others can wait for.

use crate::error::Fault;
use crate::sync::{Arc, Condvar, Mutex, lock, wait};

/// A point in the order of a stream: it completes when all work queued before it has run, or has been skipped
/// because the stream failed.
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
    outcome: Mutex<Option<Result<(), Fault>>>,
    completed: Condvar,
}

impl Event {
    pub(crate) fn new(stream: std::sync::Arc<str>) -> Self {
        Self { inner: Arc::new(Inner { stream, outcome: Mutex::new(None), completed: Condvar::new() }) }
    }

    /// An event that has already completed, in the name of `stream`.
    pub(crate) fn completed(stream: std::sync::Arc<str>) -> Self {
        let event = Self::new(stream);
        event.complete(Ok(()));
        event
    }

    /// Name of the stream whose work the event stands for.
    pub fn stream(&self) -> &std::sync::Arc<str> {
        &self.inner.stream
    }

    pub(crate) fn complete(&self, outcome: Result<(), Fault>) {
        *lock(&self.inner.outcome) = Some(outcome);
        self.inner.completed.notify_all();
    }

    /// Whether the event has completed, and how.
    pub fn query(&self) -> Option<Result<(), Fault>> {
        lock(&self.inner.outcome).clone()
    }

    /// Blocks the calling thread until the event completes.
    pub fn synchronize(&self) -> Result<(), Fault> {
        let mut outcome = lock(&self.inner.outcome);
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return outcome.clone();
            }
            outcome = wait(&self.inner.completed, outcome);
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
            event.complete(Ok(()));
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

//! Streams: ordered queues of work, each with a worker thread.

use crate::cuda;
use crate::error::{Error, Fault};
use crate::event::Event;
use crate::loan::Operands;
use crate::sync::{Arc, Condvar, Mutex, lock, thread};
use crate::timeline::{Kind, Label, Timeline};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of stack that threads of streams and of PEs have.
pub const STACK: usize = 2 << 20;

/// Is told when a stream begins and ends to wait for another stream of its PE, so that a late PE can be blamed
/// through all that wait for it.
pub trait Watch: Send + Sync {
    /// `stream` now waits for work of `producer`.
    fn waits(&self, stream: &str, producer: &str);
    /// `stream` waits no more.
    fn runs(&self, stream: &str);
    /// A stream begins a piece of work, or ends it.
    fn works(&self, _working: bool) {}
    /// Work of `stream` itself has failed, for the first time; nothing is heard of what others carry on.
    fn failed(&self, _stream: &str, _fault: &Fault) {}
}

/// Runs, and returns what must stay until the GPU has done what it was given.
pub(crate) type Job = Box<dyn FnOnce() -> (Result<(), Fault>, Kept) + Send>;
pub(crate) type Kept = Box<dyn Any + Send>;

pub(crate) enum Item {
    Work(Label, Job),
    Wait(Label, Event),
    Record(Event),
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    pub(crate) closed: bool,
}

pub(crate) struct Shared {
    pub(crate) name: std::sync::Arc<str>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) arrived: Condvar,
    pub(crate) timeline: Timeline,
    pub(crate) watch: std::sync::Arc<dyn Watch>,
    /// Of a stream of a GPU, what takes its work.
    pub(crate) cuda: Option<std::sync::Arc<cuda::Stream>>,
}

/// An ordered queue of work. Work queued on it runs one piece after another on the stream's own thread; after the
/// first piece that fails the rest is skipped, and events that others wait for carry the failure on.
///
/// Work on a stream of a GPU gives the GPU kernels and copies, on [`Stream::cuda`], and does not wait for them: its place
/// in the order counts there as it does here.
///
/// Dropping a stream waits for its queue to drain.
pub struct Stream {
    shared: Arc<Shared>,
    worker: Option<thread::JoinHandle<()>>,
}

impl Stream {
    /// Starts a stream of the CPU. `name` stands in errors and traces; spans go to `timeline`, waits are told to `watch`.
    pub fn new(name: &str, timeline: Timeline, watch: std::sync::Arc<dyn Watch>) -> Result<Self, Error> {
        Self::start(name, timeline, watch, None)
    }

    /// Starts a stream of a GPU, as [`Stream::new`].
    pub fn on_gpu(
        name: &str,
        timeline: Timeline,
        watch: std::sync::Arc<dyn Watch>,
        gpu: &std::sync::Arc<cuda::Gpu>,
    ) -> Result<Self, Error> {
        Self::start(name, timeline, watch, Some(std::sync::Arc::new(cuda::Stream::new(gpu)?)))
    }

    fn start(
        name: &str,
        timeline: Timeline,
        watch: std::sync::Arc<dyn Watch>,
        cuda: Option<std::sync::Arc<cuda::Stream>>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            name: name.into(),
            queue: Mutex::new(Queue::default()),
            arrived: Condvar::new(),
            timeline,
            watch,
            cuda,
        });
        let theirs = shared.clone();
        let worker = thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(move || theirs.run())
            .map_err(|error| Error::NoWorker { stream: name.to_owned(), reason: error.to_string() })?;
        Ok(Self { shared, worker: Some(worker) })
    }

    /// The stream's name.
    pub fn name(&self) -> &std::sync::Arc<str> {
        &self.shared.name
    }

    /// Of a stream of a GPU, what work gives its kernels and copies to.
    pub fn cuda(&self) -> Option<&std::sync::Arc<cuda::Stream>> {
        self.shared.cuda.as_ref()
    }

    /// Queues `work` over `operands`: loans (`&Loan`) and fillings (`&mut Filling`) of this stream, in a tuple. The
    /// work owns them until it has run. Fails, queuing nothing, when an operand belongs to another stream.
    pub fn launch<O, F>(&self, label: Label, operands: O, work: F) -> Result<(), Error>
    where
        O: Operands,
        F: for<'a> FnOnce(O::Access<'a>) -> Result<(), Fault> + Send + 'static,
    {
        operands.check(&self.shared.name)?;
        let (mut tickets, name) = (operands.tickets(), self.name().clone());
        self.push(Item::Work(
            label,
            Box::new(move || {
                // SAFETY: this job runs on the worker of the stream that `check` compared every operand with, in
                // the place where it was queued. A loan's stream has been ordered after the slot's producer, and a
                // filling's after the slot's former readers, before this job was queued.
                let access = unsafe { O::access(&mut tickets) };
                let outcome = catch_unwind(AssertUnwindSafe(|| work(access)))
                    .unwrap_or_else(|panic| Err(Error::from_panic(&name, &*panic).into_fault()));
                (outcome, Box::new(tickets) as Kept)
            }),
        ));
        Ok(())
    }

    /// Queues a wait: work queued later runs after `event`. `label` tells the timeline what is waited for.
    pub fn wait(&self, label: Label, event: &Event) {
        // A stream's own events are behind it already.
        if !std::sync::Arc::ptr_eq(event.stream(), &self.shared.name) {
            self.push(Item::Wait(Label { kind: Kind::Wait, ..label }, event.clone()));
        }
    }

    /// An event that completes when all work queued so far has run.
    pub fn record(&self) -> Event {
        let event = Event::new(self.shared.name.clone());
        self.push(Item::Record(event.clone()));
        event
    }

    /// Blocks the calling thread until all work queued so far has run; the stream's failure is the result.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.record().synchronize().map_err(Error::Fault)
    }

    /// Lets the stream end by itself when its work is done: dropping it does not wait any more.
    pub fn detach(&mut self) {
        self.close();
        self.worker = None;
    }

    fn close(&self) {
        lock(&self.shared.queue).closed = true;
        self.shared.arrived.notify_one();
    }

    fn push(&self, item: Item) {
        lock(&self.shared.queue).items.push_back(item);
        self.shared.arrived.notify_one();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
        if let Some(worker) = self.worker.take() {
            // The worker catches the panics of its work, so there is nothing to learn from the join.
            let _ = worker.join();
        }
    }
}

impl Error {
    fn from_panic(stream: &str, panic: &(dyn Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(|message| (*message).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "(no message)".to_owned());
        Error::Panicked { stream: stream.to_owned(), message }
    }
}

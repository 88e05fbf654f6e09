//! What the thread of a stream does.

use crate::cuda;
use crate::cuda::retired::Retired;
use crate::error::{Error, Fault};
use crate::event::{Event, Reached};
use crate::stream::{Item, Job, Shared};
use crate::sync::{lock, wait};
use crate::timeline::Label;

impl Shared {
    fn next(&self) -> Option<Item> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(item) = queue.items.pop_front() {
                return Some(item);
            }
            if queue.closed {
                return None;
            }
            queue = wait(&self.arrived, queue);
        }
    }

    pub(crate) fn run(&self) {
        let mut outcome: Result<(), Fault> = Ok(());
        let mut retired = Retired::default();
        while let Some(item) = self.next() {
            match item {
                Item::Record(event) => match self.mark() {
                    Ok(mark) => event.complete(outcome.clone(), mark),
                    Err(error) => {
                        outcome = outcome.and(Err(error.into_fault()));
                        event.complete(outcome.clone(), None);
                    }
                },
                Item::Wait(..) | Item::Work(..) if outcome.is_err() => {}
                Item::Wait(label, event) => outcome = self.wait_for(label, &event),
                Item::Work(label, job) => {
                    self.watch.works(true);
                    outcome = match &self.cuda {
                        Some(cuda) if !label.of_host => self.work_on(cuda, &mut retired, label, job),
                        _ => self.work(label, job),
                    };
                    if let Err(fault) = &outcome {
                        self.watch.failed(&self.name, fault);
                    }
                    self.watch.works(false);
                }
            }
        }
    }

    fn mark(&self) -> Result<Option<cuda::Event>, Error> {
        self.cuda.as_ref().map(|cuda| cuda.record()).transpose()
    }

    fn work(&self, label: Label, job: Job) -> Result<(), Fault> {
        let start = self.timeline.now();
        let (outcome, _) = job();
        self.timeline.record(&self.name, label, start, self.timeline.now());
        outcome
    }

    fn work_on(
        &self,
        cuda: &cuda::Stream,
        retired: &mut Retired,
        label: Label,
        job: Job,
    ) -> Result<(), Fault> {
        let start = cuda.record().map_err(Error::into_fault)?;
        let (outcome, kept) = job();
        let end = cuda.record();
        // Also where it failed: it may have given the GPU something before.
        retired.add(end.as_ref().ok(), (kept, cuda.take_kept()));
        outcome?;
        self.timeline.record_on_gpu(&self.name, label, cuda.gpu(), start, end.map_err(Error::into_fault)?);
        Ok(())
    }

    fn wait_for(&self, label: Label, event: &Event) -> Result<(), Fault> {
        if let Some(outcome) = event.query() {
            return outcome;
        }
        let Some(cuda) = &self.cuda else {
            let start = self.timeline.now();
            let outcome = self.watched(event, || event.synchronize());
            self.timeline.record(&self.name, label, start, self.timeline.now());
            return outcome;
        };
        let wait = || {
            let start = cuda.record()?;
            let Reached { outcome, mark } = match event.reached() {
                Some(reached) => reached,
                None => self.watched(event, || event.reach()),
            };
            outcome.map_err(Error::Fault)?;
            if let Some(mark) = mark {
                cuda.wait(&mark)?;
            }
            self.timeline.record_on_gpu(&self.name, label, cuda.gpu(), start, cuda.record()?);
            Ok(())
        };
        wait().map_err(Error::into_fault)
    }

    fn watched<T>(&self, event: &Event, wait: impl FnOnce() -> T) -> T {
        self.watch.waits(&self.name, event.stream());
        let value = wait();
        self.watch.runs(&self.name);
        value
    }
}

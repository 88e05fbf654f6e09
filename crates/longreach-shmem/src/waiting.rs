//! Waiting for other PEs, for as long as somebody gets on, and finding out who does not.

use crate::blame::{Culprit, HOST, Node, Record, culprit};
use crate::error::Error;
use crate::failure::{Failure, FailureKind, Operation};
use crate::world::Shared;
use longreach_device::sync::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A PE whose program has ended may still have signals under way for this long.
const GRACE: Duration = Duration::from_secs(1);

/// A circle of waits may be about to open, because a thread has been woken and does not run yet, for this long.
const CIRCLE_GRACE: Duration = Duration::from_secs(5);

/// A PE that notes a wait for another one, and of which no waiting thread has been seen alive for this long, does not
/// wait: it has been stopped. Waiting threads show themselves every 250 ms at least.
const FROZEN: Duration = Duration::from_secs(2);

impl Shared {
    /// Blocks `stream` of PE `pe` until `ready`, the world's failure, or the deadline.
    pub(crate) fn wait(
        &self,
        pe: usize,
        stream: &str,
        target: &Node,
        operation: Operation,
        ready: impl Fn() -> bool,
    ) -> Result<(), Error> {
        if ready() {
            return self.check();
        }
        let ledger = self.transport.ledger(pe);
        ledger.wait(stream, Record { target: target.clone(), operation: Some(operation) });
        // Work of a stream that waits is not at work.
        let of_stream = stream != HOST;
        if of_stream {
            ledger.work(false);
        }
        let outcome = self.wait_ready(pe, target, operation, ready);
        if of_stream {
            ledger.work(true);
        }
        ledger.run(stream);
        outcome
    }

    fn wait_ready(
        &self,
        pe: usize,
        target: &Node,
        operation: Operation,
        ready: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let deadline = self.deadline();
        let look = (deadline / 16).clamp(Duration::from_millis(1), Duration::from_millis(250));
        let began = Instant::now();
        // The suspect, its progress, and since when neither has changed.
        let mut suspect: Option<(Culprit, u64, Instant)> = None;
        let mut next_look = began + look;
        let mut pulse = Pulse { within: FROZEN.min(deadline / 2), seen: HashMap::new() };
        loop {
            let sleep = next_look.saturating_duration_since(Instant::now());
            if self.transport.sleep(pe, sleep, &|| ready() || self.failure().is_some()) {
                return self.check();
            }
            // The bell rings for all that changes on this PE; following the waits is for the clock only.
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + look;
            self.transport.ledger(pe).beat();
            // Relaxed: as in `World::run`.
            let run = self.runs.load(Ordering::Relaxed);
            let ledger = |pe| self.transport.ledger(pe);
            let found = culprit(ledger, run, target, operation, |pe| pulse.stopped(pe, ledger(pe).beats()));
            let progress = self.progress_of(&found);
            match &suspect {
                Some((same, count, since)) if *same == found && *count == progress => {
                    let bound = match found {
                        Culprit::Runs { .. } => deadline,
                        Culprit::Ended { .. } => deadline.min(GRACE),
                        Culprit::Circle(_) => deadline.min(CIRCLE_GRACE),
                    };
                    if since.elapsed() >= bound && !ready() {
                        return Err(self.fail(failure_of(found, began.elapsed(), operation)));
                    }
                }
                _ => suspect = Some((found, progress, Instant::now())),
            }
        }
    }

    fn progress_of(&self, culprit: &Culprit) -> u64 {
        match culprit {
            Culprit::Runs { pe, .. } | Culprit::Ended { pe, .. } => self.transport.ledger(*pe).progress(),
            Culprit::Circle(pes) => pes.iter().map(|pe| self.transport.ledger(*pe).progress()).sum(),
        }
    }
}

/// When a waiter last saw signs of life of those that its wait depends on.
struct Pulse {
    within: Duration,
    seen: HashMap<usize, (u64, Instant)>,
}

impl Pulse {
    /// Whether `pe`, which has shown `beats` signs, has shown none for too long.
    fn stopped(&mut self, pe: usize, beats: u64) -> bool {
        let now = Instant::now();
        let seen = self.seen.entry(pe).or_insert((beats, now));
        if seen.0 != beats {
            *seen = (beats, now);
        }
        now - seen.1 >= self.within
    }
}

fn failure_of(culprit: Culprit, waited: Duration, asked: Operation) -> Failure {
    let (kind, pe, operation, message) = match culprit {
        Culprit::Runs { pe, operation } => (FailureKind::Stalled, pe, operation, String::new()),
        Culprit::Ended { pe, operation } => (
            FailureKind::Left,
            pe,
            operation,
            "its program has ended; every PE must make the same calls".to_owned(),
        ),
        Culprit::Circle(mut pes) => {
            // From the smallest on, so that whoever finds the circle names it alike.
            let smallest = pes.iter().enumerate().min_by_key(|(_, pe)| **pe).map_or(0, |(place, _)| place);
            pes.rotate_left(smallest);
            let circle = format!("PEs {pes:?} wait for each other");
            (FailureKind::Deadlock, pes.first().copied().unwrap_or_default(), asked, circle)
        }
    };
    Failure { kind, pe, operation, waited, message }
}

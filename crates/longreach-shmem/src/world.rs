//! Worlds: a fixed number of PEs that share symmetric memory and one fate.

use crate::blame::{Culprit, Ledger, LocalWaits, Node, Record, culprit};
use crate::failure::{Error, Failure, FailureKind, Operation};
use crate::gather::Gathering;
use crate::team::Team;
use crate::words::Bell;
use longreach_device::Watch;
use longreach_device::sync::{AtomicBool, Mutex, Ordering, lock, process};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A PE that is waited for may be without progress for this long, where nothing else is said.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A PE whose program has ended may still have signals under way for this long.
const GRACE: Duration = Duration::from_secs(1);

/// A circle of waits may be about to open, because a thread has been woken and does not run yet, for this long.
const CIRCLE_GRACE: Duration = Duration::from_secs(5);

/// Worlds by name. A name is free again when the last handle of its world is gone.
static NAMED: process::Mutex<Option<HashMap<String, Weak<Shared>>>> = process::Mutex::new(None);

/// A fixed number of PEs, each a thread of this process, numbered from 0.
///
/// Cloning gives another handle of the same world.
#[derive(Clone)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) pes: usize,
    pub(crate) ledgers: Vec<Arc<Ledger>>,
    pub(crate) bells: Vec<Bell>,
    pub(crate) gatherings: Mutex<HashMap<String, Arc<Gathering>>>,
    pub(crate) teams: Mutex<u64>,
    failed: AtomicBool,
    failure: Mutex<Option<Arc<Failure>>>,
    deadline: OnceLock<Duration>,
    pub(crate) origin: Instant,
}

impl World {
    /// A new world of `pes` PEs without a name; each call makes another one.
    pub fn threads(pes: usize) -> Result<Self, Error> {
        if pes == 0 {
            return Err(Error::NoPes);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                pes,
                ledgers: (0..pes).map(|_| Arc::new(Ledger::default())).collect(),
                bells: (0..pes).map(|_| Bell::new()).collect(),
                gatherings: Mutex::new(HashMap::new()),
                teams: Mutex::new(0),
                failed: AtomicBool::new(false),
                failure: Mutex::new(None),
                deadline: OnceLock::new(),
                origin: Instant::now(),
            }),
        })
    }

    /// The world called `name` in this process; it is made at the first call. Asking for it again with another
    /// number of PEs is an error.
    pub fn named_threads(name: &str, pes: usize) -> Result<Self, Error> {
        let mut named = NAMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let named = named.get_or_insert_default();
        if let Some(shared) = named.get(name).and_then(Weak::upgrade) {
            if shared.pes != pes {
                return Err(Error::WorldExists { name: name.to_owned(), have: shared.pes, asked: pes });
            }
            return Ok(Self { shared });
        }
        let world = Self::threads(pes)?;
        named.insert(name.to_owned(), Arc::downgrade(&world.shared));
        Ok(world)
    }

    /// Bounds how long a PE that is waited for may be without progress (60 s where this is not called). Takes
    /// effect once; must be called before [`World::run`].
    pub fn with_deadline(self, deadline: Duration) -> Self {
        // A second call changes nothing: PEs of a running world must agree on the deadline.
        let _ = self.shared.deadline.set(deadline);
        self
    }

    /// Number of PEs.
    pub fn pes(&self) -> usize {
        self.shared.pes
    }

    /// The moment from which the seconds of the world's timelines count.
    pub fn origin(&self) -> Instant {
        self.shared.origin
    }

    /// What PE `pe` has done so far, as a count of tiles and transfers.
    pub fn progress(&self, pe: usize) -> u64 {
        self.shared.ledgers.get(pe).map_or(0, |ledger| ledger.progress())
    }

    /// The failure of this world, if it has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Runs `program` once on every PE, each in a thread of its own, and returns the results in PE order.
    ///
    /// Collective by nature. When a PE returns an error or panics the world fails: the other PEs' next waits end
    /// with that failure, and `run` returns the error of the PE that is to blame. A failed world stays failed.
    pub fn run<T, E, F>(&self, program: F) -> Result<Vec<T>, E>
    where
        T: Send + 'static,
        E: From<Error> + std::fmt::Display + Send + 'static,
        F: Fn(&Pe) -> Result<T, E> + Send + Sync,
    {
        self.check()?;
        // Before any PE starts: an early one must not take a late one for ended.
        self.shared.ledgers.iter().for_each(|ledger| ledger.set_ended(false));
        let program = &program;
        let outcomes = spawn_all(self, &|pe: &Pe| {
            let outcome = catch_unwind(AssertUnwindSafe(|| program(pe))).unwrap_or_else(|panic| {
                let message = panic_message(&*panic);
                Err(E::from(self.shared.fail(Failure {
                    kind: FailureKind::Failed,
                    pe: pe.number,
                    operation: None,
                    waited: None,
                    message: format!("it panicked: {message}"),
                })))
            });
            if let Err(error) = &outcome {
                self.shared.fail(Failure {
                    kind: FailureKind::Failed,
                    pe: pe.number,
                    operation: None,
                    waited: None,
                    message: error.to_string(),
                });
            }
            self.shared.ledgers[pe.number].set_ended(true);
            self.shared.bells.iter().for_each(Bell::ring);
            outcome
        })?;
        let mut results = Vec::with_capacity(self.shared.pes);
        let mut errors = Vec::new();
        for (pe, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(value) => results.push(value),
                Err(error) => errors.push((pe, error)),
            }
        }
        if errors.is_empty() {
            return Ok(results);
        }
        let blamed = self.shared.failure().map_or(0, |failure| failure.pe);
        let place = errors.iter().position(|(pe, _)| *pe == blamed).unwrap_or(0);
        Err(errors.swap_remove(place).1)
    }
}

#[cfg(not(shuttle))]
fn spawn_all<R, F>(world: &World, program: &F) -> Result<Vec<R>, Error>
where
    R: Send,
    F: Fn(&Pe) -> R + Sync,
{
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..world.pes())
            .map(|number| {
                let pe = Pe::new(world, number);
                std::thread::Builder::new()
                    .name(format!("pe {number}"))
                    .spawn_scoped(scope, move || program(&pe))
                    .map_err(|error| {
                        let reason = error.to_string();
                        // PEs that run already must not wait for one that never comes.
                        world.shared.fail(Failure {
                            kind: FailureKind::Failed,
                            pe: number,
                            operation: None,
                            waited: None,
                            message: format!("its thread could not be started: {reason}"),
                        });
                        Error::NoThread { pe: number, reason }
                    })
            })
            .collect::<Result<_, _>>()?;
        // The program catches panics itself, so a join that fails can only mean one in the code above.
        Ok(handles.into_iter().map(|handle| handle.join().expect("a PE's thread ends by itself")).collect())
    })
}

#[cfg(shuttle)]
fn spawn_all<R, F>(world: &World, program: &F) -> Result<Vec<R>, Error>
where
    R: Send + 'static,
    F: Fn(&Pe) -> R + Sync,
{
    Ok(longreach_device::sync::thread::scope(|scope| {
        let handles: Vec<_> = (0..world.pes())
            .map(|number| {
                let pe = Pe::new(world, number);
                scope.spawn(move || program(&pe))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a PE's thread ends by itself")).collect()
    }))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

impl Shared {
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.failure() {
            Some(failure) => Err(Error::Failed(failure)),
            None => Ok(()),
        }
    }

    /// Poisons the world with `failure`, unless it has failed already, and returns the failure that counts.
    pub(crate) fn fail(&self, failure: Failure) -> Error {
        let failure = lock(&self.failure).get_or_insert_with(|| Arc::new(failure)).clone();
        // Release: pairs with `failure`. Set after the failure itself and before the bells.
        self.failed.store(true, Ordering::Release);
        self.bells.iter().for_each(Bell::ring);
        Error::Failed(failure)
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        // Looked at by every transfer, so this must not order PEs among each other, which would hide from
        // ThreadSanitizer what signals fail to order. Acquire: pairs with `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.failure).clone()
    }

    fn deadline(&self) -> Duration {
        *self.deadline.get().unwrap_or(&DEFAULT_DEADLINE)
    }

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
        let ledger = &self.ledgers[pe];
        ledger.wait(stream, Record { target: target.clone(), operation: Some(operation) });
        let outcome = self.wait_ready(pe, target, operation, ready);
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
        loop {
            let sleep = next_look.saturating_duration_since(Instant::now());
            if self.bells[pe].wait(sleep, || ready() || self.failure().is_some()) {
                return self.check();
            }
            // The bell rings for all that changes on this PE; following the waits is for the clock only.
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + look;
            let found = culprit(&self.ledgers, target, operation);
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
            Culprit::Runs { pe, .. } | Culprit::Ended { pe, .. } => self.ledgers[*pe].progress(),
            Culprit::Circle(pes) => pes.iter().map(|pe| self.ledgers[*pe].progress()).sum(),
        }
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
        Culprit::Circle(pes) => {
            let circle = format!("PEs {pes:?} wait for each other");
            (FailureKind::Deadlock, pes.first().copied().unwrap_or_default(), asked, circle)
        }
    };
    Failure { kind, pe, operation: Some(operation), waited: Some(waited), message }
}

/// One processing element, as its program sees it.
pub struct Pe {
    pub(crate) shared: Arc<Shared>,
    number: usize,
}

impl Pe {
    fn new(world: &World, number: usize) -> Self {
        Self { shared: world.shared.clone(), number }
    }

    /// The PE's number in its world, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Number of PEs in the world.
    pub fn pes(&self) -> usize {
        self.shared.pes
    }

    /// The team of all PEs, in order. Collective over the world; each call makes a new team.
    pub fn team(&self) -> Result<Team, Error> {
        self.team_of(&(0..self.shared.pes).collect::<Vec<_>>())
    }

    /// The team of the PEs in `ranks`, in that order. Collective over those PEs, all of which must name the same
    /// ranks in the same order; each call makes a new team.
    pub fn team_of(&self, ranks: &[usize]) -> Result<Team, Error> {
        Team::new(self, ranks)
    }

    pub(crate) fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(LocalWaits { pe: self.number, ledger: self.shared.ledgers[self.number].clone() })
    }
}

//! Worlds: a fixed number of PEs that share symmetric memory and one fate.

use crate::blame::LocalWaits;
use crate::environment::Rendezvous;
use crate::error::Error;
use crate::failure::{Failure, FailureKind, Operation};
use crate::names::named;
use crate::team::Team;
use crate::threads::Threads;
use crate::transport::Transport;
use longreach_device::Watch;
#[cfg(not(shuttle))]
use longreach_device::stream::STACK;
use longreach_device::sync::{AtomicBool, AtomicU64, Ordering};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A PE that is waited for may be without progress for this long, where nothing else is said.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A world has at most so many PEs. Each looks at every other's publications, and has words for it in its memory: with
/// more on one machine all time goes there, and a number like this is a mistake.
pub const MOST_PES: usize = 1024;

/// A fixed number of PEs, numbered from 0, each a thread of this process or a process of this machine.
///
/// Cloning gives another handle of the same world.
#[derive(Clone)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) pes: usize,
    pub(crate) transport: Arc<dyn Transport>,
    /// What ends with the last handle of the world in this process.
    _membership: Box<dyn Any + Send + Sync>,
    /// NVSHMEM, once it has been started.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) nvshmem: OnceLock<Arc<crate::nvshmem::Nvshmem>>,
    /// Teams that PEs of this process have asked for.
    pub(crate) teams: AtomicU64,
    /// Runs that have begun, the number of the one that is running.
    pub(crate) runs: AtomicU64,
    /// Whether one is.
    running: AtomicBool,
    /// Where [`World::with_deadline`] has not been called.
    usual_deadline: Duration,
    deadline: OnceLock<Duration>,
    pub(crate) origin: Instant,
}

impl World {
    pub(crate) fn new(
        pes: usize,
        transport: Arc<dyn Transport>,
        membership: impl Any + Send + Sync,
        origin: Instant,
        deadline: Duration,
    ) -> Self {
        let shared = Shared {
            pes,
            transport,
            _membership: Box::new(membership),
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            nvshmem: OnceLock::new(),
            teams: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            running: AtomicBool::new(false),
            usual_deadline: deadline,
            deadline: OnceLock::new(),
            origin,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A new world of `pes` PEs without a name, each a thread of this process; each call makes another one.
    pub fn threads(pes: usize) -> Result<Self, Error> {
        check_size(pes)?;
        Ok(Self::new(pes, Arc::new(Threads::new(pes)), (), Instant::now(), DEFAULT_DEADLINE))
    }

    /// The world called `name` of PEs that are threads of this process; it is made at the first call. Asking for it
    /// again with another number of PEs, or where PEs of that name are processes, is an error.
    pub fn named_threads(name: &str, pes: usize) -> Result<Self, Error> {
        named(name, pes, "threads", || Self::threads(pes))
    }

    /// The world that this process was started for, by `longreach launch`, torchrun or srun; see
    /// [`Rendezvous::from_env`]. The first call is collective; later ones give the same world.
    pub fn from_env() -> Result<Self, Error> {
        Self::join(&Rendezvous::from_env()?)
    }

    /// Meets the other PEs of a world of processes on this machine, and returns when all are there. Collective over
    /// them; a world that this process is in already is given again.
    ///
    /// Fails where PEs do not come within the rendezvous's deadline, where they disagree on the number of PEs, and
    /// where the operating system is not Linux.
    pub fn join(rendezvous: &Rendezvous) -> Result<Self, Error> {
        let Rendezvous { world, pe, pes, .. } = rendezvous;
        check_size(*pes)?;
        if pe >= pes {
            return Err(rendezvous.error(format!("this process is PE {pe}, the world has PEs 0..{pes}")));
        }
        named(world, *pes, &format!("processes, this one PE {pe}"), || {
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            {
                let (transport, membership, origin) = crate::processes::join(rendezvous)?;
                Ok(Self::new(*pes, transport, membership, origin, rendezvous.deadline))
            }
            #[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
            Err(rendezvous.error("PEs that are processes need Linux: use World::threads".to_owned()))
        })
    }

    /// Bounds how long a PE that is waited for may be without progress. Where this is not called, it is 60 s for
    /// threads, and the rendezvous's deadline for processes, which all give the same. Takes effect once; must be
    /// called before [`World::run`].
    pub fn with_deadline(self, deadline: Duration) -> Self {
        // A second call changes nothing: PEs of a running world must agree on the deadline.
        let _ = self.shared.deadline.set(deadline);
        self
    }

    /// The PE of this process, where each PE is a process; none where all PEs are threads of this one.
    pub fn own(&self) -> Option<usize> {
        self.shared.transport.own()
    }

    /// How long a PE that is waited for may be without progress.
    pub fn deadline(&self) -> Duration {
        self.shared.deadline()
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
        if pe < self.shared.pes { self.shared.transport.ledger(pe).progress() } else { 0 }
    }

    /// The failure of this world, if it has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.check()
    }

    /// Fails the world in the name of PE `pe` of this process, which cannot go on for `reason`; returns the failure that
    /// counts. For who learns of it outside of the PE's program.
    pub fn fail(&self, pe: usize, reason: &str) -> Error {
        self.shared.fail_by(FailureKind::Failed, pe, reason.to_owned())
    }

    /// Says that this process ends now, on purpose. Other PEs do not take it for dead; those that still wait for it
    /// fail with [`FailureKind::Left`].
    pub fn leave(&self) {
        if let Some(pe) = self.own() {
            self.shared.transport.ledger(pe).finish(u64::MAX);
            self.shared.ring_all();
        }
    }

    /// Notes that PE `pe` of this process has told its user of the world's failure.
    pub fn set_reported(&self, pe: usize) {
        self.shared.transport.ledger(pe).set_reported();
    }

    /// The PEs that have told their users of the world's failure.
    pub fn reported_by(&self) -> Vec<usize> {
        (0..self.pes()).filter(|&pe| self.shared.transport.ledger(pe).reported()).collect()
    }

    /// Runs `program` once on every PE and returns, when all PEs' programs have ended, the results of the PEs of this
    /// process in PE order: all of them where PEs are threads, which are started for it; the one result where PEs are
    /// processes, where it runs on the calling thread.
    ///
    /// Collective. When a PE returns an error or panics, or its process dies, the world fails: the other PEs' next
    /// waits end with that failure, also the wait for the others at the end. `run` returns the error of the PE that is
    /// to blame, where that is one of this process. A failed world stays failed.
    pub fn run<T, E, F>(&self, program: F) -> Result<Vec<T>, E>
    where
        T: Send + 'static,
        E: From<Error> + std::fmt::Display + Send + 'static,
        F: Fn(&Pe) -> Result<T, E> + Send + Sync,
    {
        self.check()?;
        let shared = &self.shared;
        // Acquire and Release: what a run leaves in the world is there for the next, whoever makes it.
        if shared.running.swap(true, Ordering::Acquire) {
            return Err(Error::Running { pes: shared.pes }.into());
        }
        let _running = Running(&shared.running);
        // Relaxed: one caller at a time; threads that see it are started after it.
        let run = shared.runs.fetch_add(1, Ordering::Relaxed) + 1;
        shared.transport.begin(run).map_err(|failure| shared.fail(failure))?;
        let program = |pe: &Pe| {
            shared.transport.ledger(pe.number).begin(Operation::outside("its program"));
            let outcome = catch_unwind(AssertUnwindSafe(|| program(pe))).unwrap_or_else(|panic| {
                let message = format!("it panicked: {}", panic_message(&*panic));
                Err(E::from(shared.fail_by(FailureKind::Failed, pe.number, message)))
            });
            if let Err(error) = &outcome {
                shared.fail_by(FailureKind::Failed, pe.number, error.to_string());
            }
            shared.transport.ledger(pe.number).finish(run);
            shared.ring_all();
            outcome
        };
        let outcomes = match shared.transport.own() {
            None => spawn_all(self, &program)?,
            Some(number) => {
                let outcome = program(&Pe::new(self, number));
                shared.wait_for_all(number, run);
                vec![outcome]
            }
        };
        let first = shared.transport.own().unwrap_or(0);
        let mut results = Vec::with_capacity(outcomes.len());
        let mut errors = Vec::new();
        for (pe, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(value) => results.push(value),
                Err(error) => errors.push((first + pe, error)),
            }
        }
        if errors.is_empty() {
            self.check()?;
            return Ok(results);
        }
        let blamed = shared.transport.failure().map_or(0, |failure| failure.pe);
        let place = errors.iter().position(|(pe, _)| *pe == blamed).unwrap_or(0);
        Err(errors.swap_remove(place).1)
    }
}

/// A run of a world, while it lasts.
struct Running<'w>(&'w AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Release: pairs with the swap that begins a run.
        self.0.store(false, Ordering::Release);
    }
}

fn check_size(pes: usize) -> Result<(), Error> {
    if (1..=MOST_PES).contains(&pes) { Ok(()) } else { Err(Error::WorldSize { pes }) }
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
                    .stack_size(STACK)
                    .spawn_scoped(scope, move || program(&pe))
                    .map_err(|error| {
                        let reason = error.to_string();
                        // PEs that run already must not wait for one that never comes.
                        let message = format!(
                            "its thread, with a stack of {STACK} bytes, could not be started: {reason}"
                        );
                        world.shared.fail_by(FailureKind::Failed, number, message);
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

fn panic_message(panic: &(dyn Any + Send)) -> String {
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
        let failure = self.transport.fail(failure);
        // After the failure itself, so that whoever is woken sees it.
        self.ring_all();
        Error::Failed(failure)
    }

    /// Poisons the world because of what PE `pe` says of itself.
    pub(crate) fn fail_by(&self, kind: FailureKind, pe: usize, message: String) -> Error {
        let doing = self.transport.ledger(pe).doing();
        let (operation, waited) = doing.unwrap_or((Operation::outside("its program"), Duration::ZERO));
        self.fail(Failure { kind, pe, operation, waited, message })
    }

    fn ring_all(&self) {
        (0..self.pes).for_each(|pe| self.transport.ring(pe));
    }

    pub(crate) fn failure(&self) -> Option<Arc<Failure>> {
        self.transport.failure()
    }

    /// Blocks PE `pe` until the programs of all PEs have ended run `run`, or the world has failed. Without a deadline:
    /// nobody needs the late ones, which may have much to do.
    fn wait_for_all(&self, pe: usize, run: u64) {
        let ended = || (0..self.pes).all(|pe| self.transport.ledger(pe).finished() >= run);
        while !self.transport.sleep(pe, Duration::from_secs(1), &|| ended() || self.failure().is_some()) {}
    }

    pub(crate) fn deadline(&self) -> Duration {
        *self.deadline.get().unwrap_or(&self.usual_deadline)
    }
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
        Arc::new(LocalWaits { pe: self.number, world: self.shared.clone() })
    }
}

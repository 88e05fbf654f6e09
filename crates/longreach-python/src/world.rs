//! The world of a process group: this process's PE in it, and teams.

use crate::error::{raised_shmem, refused};
use crate::waiter::Waiter;
use longreach::{Pe, Rendezvous, ShmemError};
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce(&Pe) + Send>;

/// This process's place in a world of processes.
///
/// A world's programs are functions that run from begin to end; a Python process is one that a thread runs for it, which
/// does as it is told until the handle is gone.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct World {
    inner: longreach::World,
    me: usize,
    jobs: Mutex<Option<Sender<Job>>>,
    waiter: Waiter,
}

#[pymethods]
impl World {
    /// Meets the other ranks. Collective over the group.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        job: String,
        token: String,
        pe: usize,
        pes: usize,
        deadline: f64,
    ) -> PyResult<Self> {
        let deadline = Duration::try_from_secs_f64(deadline)
            .ok()
            .filter(|deadline| !deadline.is_zero())
            .ok_or_else(|| refused(format!("timeout is {deadline}: it must be seconds above 0")))?;
        let rendezvous = Rendezvous { world: job.clone(), job, pe, pes, token: Some(token), deadline };
        let waiter = Waiter::start("longreach waiter")?;
        // An interrupt here leaves the others to their deadline: there is no world yet that could tell them.
        let world = waiter.run(py, || (), move || longreach::World::join(&rendezvous))?;
        let inner = world.map_err(|error| raised_shmem(py, pe, &error))?;
        let (jobs, queue) = channel();
        let (own, queue) = (inner.clone(), Mutex::new(queue));
        let serve = move || {
            // A failure is every waiting call's error, here and elsewhere: nobody reads it off this thread.
            let _ = own.run(|pe| {
                serve(pe, &queue);
                Ok::<(), ShmemError>(())
            });
        };
        thread::Builder::new()
            .name("longreach pe".to_owned())
            .spawn(serve)
            .map_err(|error| refused(format!("the PE's thread could not be started: {error}")))?;
        Ok(Self { inner, me: pe, jobs: Mutex::new(Some(jobs)), waiter })
    }

    /// The team of the ranks in `ranks`, in that order; without them of all. Collective over them.
    #[pyo3(signature = (ranks=None))]
    fn team(&self, py: Python<'_>, ranks: Option<Vec<usize>>) -> PyResult<Team> {
        let (made, team) = channel();
        let make = move |pe: &Pe| {
            let ranks = ranks.unwrap_or_else(|| (0..pe.pes()).collect());
            // Who was interrupted does not take it.
            drop(made.send(pe.team_of(&ranks)));
        };
        let sent = self.jobs().as_ref().is_some_and(|jobs| jobs.send(Box::new(make)).is_ok());
        if !sent {
            return Err(refused("this world has been left: make a new ContextParallel"));
        }
        let team = self.waiter.run(py, || self.interrupted(), move || team.recv())?;
        let team = team.map_err(|_| refused("the PE's thread has ended"))?;
        let inner = team.map_err(|error| raised_shmem(py, self.me, &error))?;
        Ok(Team { inner, me: self.me, waiter: Waiter::start("longreach waiter")? })
    }

    /// Raises the world's failure, if it has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.check().map_err(|error| raised_shmem(py, self.me, &error))
    }

    /// Whether the world has failed.
    fn failed(&self) -> bool {
        self.inner.check().is_err()
    }

    /// Fails the world in this rank's name.
    fn fail(&self, reason: &str) {
        self.inner.fail(self.me, reason);
    }

    /// Says that this process ends now, on purpose. Not collective.
    fn leave(&self) {
        self.jobs().take();
        self.inner.leave();
    }
}

impl World {
    fn jobs(&self) -> MutexGuard<'_, Option<Sender<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupted(&self) {
        self.inner.fail(self.me, INTERRUPTED);
    }
}

/// What is said of a rank whose user has interrupted a call.
pub const INTERRUPTED: &str = "a signal interrupted its Python program during a call";

/// Does what this process's PE is told, until nobody can tell it any more.
fn serve(pe: &Pe, queue: &Mutex<Receiver<Job>>) {
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.iter().for_each(|job| job(pe));
}

/// Ranks in an order of their own.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct Team {
    pub inner: longreach::Team,
    pub me: usize,
    pub waiter: Waiter,
}

#[pymethods]
impl Team {
    /// This process's rank in the team.
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    /// The group's ranks of its members, in its order.
    #[getter]
    fn ranks(&self) -> Vec<usize> {
        self.inner.ranks().to_vec()
    }

    /// Ranks of the team.
    #[getter]
    fn size(&self) -> usize {
        self.inner.size()
    }
    /// Returns when all ranks of the team have called it. Collective over the team.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let of = self.inner.clone();
        self.wait(py, move || of.barrier())?.map_err(|error| raised_shmem(py, self.me, &error))
    }
}

impl Team {
    /// Runs a collective call of the team, which Python's signals interrupt.
    pub fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        self.waiter.run(py, || drop(self.inner.fail(INTERRUPTED)), job)
    }
}

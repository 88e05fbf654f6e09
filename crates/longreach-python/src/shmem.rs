//! Symmetric memory, one-sided transfers and signals for `longreach.shmem`.

use crate::error::{raised_shmem, refused};
use crate::waiter::Waiter;
use crate::world::Team;
use longreach::{ShmemError, Signals, Symmetric};
use pyo3::prelude::*;
use std::slice;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A thread that carries out this rank's transfers, one after another.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct Transfers {
    thread: Waiter,
}

/// Symmetric memory of a team.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct Buffer {
    memory: Symmetric,
    me: usize,
    /// Where this rank's own part begins.
    #[pyo3(get)]
    address: usize,
}

/// A signal word on each rank of a team.
#[pyclass(frozen, module = "longreach._longreach")]
pub struct Signal {
    words: Signals,
    team: longreach::Team,
    me: usize,
}

/// A transfer that has been queued.
#[pyclass(frozen, module = "longreach._longreach")]
pub struct Handle {
    state: Mutex<State>,
    me: usize,
}

enum State {
    Queued(Receiver<Result<(), ShmemError>>),
    Done(Result<(), ShmemError>),
}

/// Bytes of this process's memory that somebody keeps for a transfer.
struct Kept {
    address: usize,
    bytes: usize,
    _owner: Py<PyAny>,
}

#[pymethods]
impl Transfers {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self { thread: Waiter::start("longreach transfers")? })
    }

    /// Queues a get of `bytes` bytes at `offset` of `rank`'s part into the memory at `address`, which `owner` keeps.
    #[allow(clippy::too_many_arguments)] // the two ends of a transfer
    fn get(
        &self,
        buffer: &Buffer,
        rank: usize,
        offset: usize,
        address: usize,
        bytes: usize,
        owner: Py<PyAny>,
    ) -> PyResult<Handle> {
        let (memory, into) = (buffer.memory.clone(), Kept { address, bytes, _owner: owner });
        self.queue(buffer.me, move || {
            if into.bytes == 0 {
                return memory.read(rank, offset, &mut []);
            }
            // SAFETY: the owner is a tensor whose elements are those bytes, side by side, and lives as long as the job.
            memory
                .read(rank, offset, unsafe { slice::from_raw_parts_mut(into.address as *mut u8, into.bytes) })
        })
    }

    /// Queues a put of `bytes` bytes of the memory at `address`, which `owner` keeps, into `rank`'s part at `offset`, and
    /// behind it the signal, raised to the value.
    #[allow(clippy::too_many_arguments)] // the two ends of a transfer
    #[pyo3(signature = (buffer, rank, offset, address, bytes, owner, signal=None))]
    fn put(
        &self,
        py: Python<'_>,
        buffer: &Buffer,
        rank: usize,
        offset: usize,
        address: usize,
        bytes: usize,
        owner: Py<PyAny>,
        signal: Option<(Py<Signal>, u64)>,
    ) -> PyResult<Handle> {
        let (memory, from) = (buffer.memory.clone(), Kept { address, bytes, _owner: owner });
        let signal = signal.map(|(signal, value)| (signal.bind(py).get().words.clone(), value));
        self.queue(buffer.me, move || {
            let bytes = match from.bytes {
                0 => &[],
                // SAFETY: as in `get`; nobody is to write them before `quiet`.
                bytes => unsafe { slice::from_raw_parts(from.address as *const u8, bytes) },
            };
            memory.write(rank, offset, bytes)?;
            signal.map_or(Ok(()), |(words, value)| words.set(rank, 0, value))
        })
    }

    /// Queues nothing: when it is done, all before is.
    fn fence(&self) -> PyResult<Handle> {
        self.queue(0, || Ok(()))
    }
}

impl Transfers {
    fn queue(
        &self,
        me: usize,
        job: impl FnOnce() -> Result<(), ShmemError> + Send + 'static,
    ) -> PyResult<Handle> {
        let (done, result) = channel();
        // Who does not want to know drops the handle.
        self.thread.send(move || drop(done.send(job())))?;
        Ok(Handle { state: Mutex::new(State::Queued(result)), me })
    }
}

#[pymethods]
impl Buffer {
    /// Allocates `bytes` on each rank, zeroed. Collective over the team.
    #[new]
    fn new(py: Python<'_>, team: &Team, bytes: usize) -> PyResult<Self> {
        let (of, me) = (team.inner.clone(), team.me);
        let memory =
            team.wait(py, move || of.allocate(bytes))?.map_err(|error| raised_shmem(py, me, &error))?;
        let address = memory.own_address().map_err(|error| raised_shmem(py, me, &error))?;
        Ok(Self { memory, me, address })
    }
}

#[pymethods]
impl Signal {
    /// A word on each rank, 0. Collective over the team.
    #[new]
    fn new(py: Python<'_>, team: &Team) -> PyResult<Self> {
        let (of, me) = (team.inner.clone(), team.me);
        let words = team.wait(py, move || of.signals(1))?.map_err(|error| raised_shmem(py, me, &error))?;
        Ok(Self { words, team: team.inner.clone(), me })
    }

    /// This rank's word.
    fn value(&self, py: Python<'_>) -> PyResult<u64> {
        self.words.load(0).map_err(|error| raised_shmem(py, self.me, &error))
    }

    /// Raises `rank`'s word at once.
    fn set(&self, py: Python<'_>, rank: usize, value: u64) -> PyResult<()> {
        self.words.set(rank, 0, value).map_err(|error| raised_shmem(py, self.me, &error))
    }

    /// Whether this rank's word has come to `value` within so many seconds.
    fn wait(&self, py: Python<'_>, value: u64, seconds: f64) -> PyResult<bool> {
        let until =
            Duration::try_from_secs_f64(seconds).ok().and_then(|time| Instant::now().checked_add(time));
        let until =
            until.ok_or_else(|| refused(format!("deadline is {seconds}: it must be seconds from 0")))?;
        loop {
            let look = (Instant::now() + LOOK).min(until);
            let waited = py.detach(|| self.look_until(value, look));
            if waited.map_err(|error| raised_shmem(py, self.me, &error))? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }
}

/// How often Python is asked whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);
/// Longest sleep between looks at a word: nobody rings for a thread that is not a stream's.
const NAP: Duration = Duration::from_micros(200);

impl Signal {
    fn look_until(&self, value: u64, until: Instant) -> Result<bool, ShmemError> {
        let mut nap = Duration::from_micros(1);
        loop {
            if self.words.load(0)? >= value {
                return Ok(true);
            }
            self.team.check()?;
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(nap);
            nap = (2 * nap).min(NAP);
        }
    }
}

#[pymethods]
impl Handle {
    /// Returns when the transfer is done. May be called again.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let waited = py.detach(|| {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let State::Queued(result) = &*state {
                    match result.recv_timeout(LOOK) {
                        Ok(result) => *state = State::Done(result),
                        Err(RecvTimeoutError::Timeout) => return None,
                        Err(RecvTimeoutError::Disconnected) => {
                            return Some(Err(refused("the transfer panicked; its message is on stderr")));
                        }
                    }
                }
                match &*state {
                    State::Done(result) => Some(Ok(result.clone())),
                    State::Queued(_) => None,
                }
            });
            match waited {
                Some(result) => return result?.map_err(|error| raised_shmem(py, self.me, &error)),
                None => py.check_signals()?,
            }
        }
    }
}

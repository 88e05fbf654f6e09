//! Calls of context-parallel attention on borrowed tensors.

use crate::attention::{Attention, parse};
use crate::dlpack::{Borrowed, Memory};
use crate::error::{heap_too_small, raised, refused};
use crate::store::store;
use crate::waiter::Waiter;
use crate::world::{INTERRUPTED, Team};
use longreach::{ContextParallel, Dims, Error, Forward, Gradients, HeapSize, Options, Stages, Tensor};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An engine on a team: streams and symmetric memory.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct Engine {
    cp: ContextParallel,
    options: Options,
    me: usize,
    waiter: Waiter,
    /// The last backward: its work for others may go on after its own results are there.
    last: Mutex<Option<Gradients>>,
}

/// A forward's inputs and outputs, kept for one backward.
#[pyclass(frozen, weakref, module = "longreach._longreach")]
pub struct Saved {
    inner: Mutex<Option<longreach::Saved>>,
}

#[pymethods]
impl Engine {
    /// Starts the streams and reserves symmetric memory. Collective over the team.
    #[new]
    #[pyo3(signature = (team, *, layout, publish, contribution, threads, stages=None, memory=None))]
    #[allow(clippy::too_many_arguments)] // options, by keyword
    fn new(
        py: Python<'_>,
        team: &Team,
        layout: &str,
        publish: usize,
        contribution: usize,
        threads: usize,
        stages: Option<usize>,
        memory: Option<u64>,
    ) -> PyResult<Self> {
        let options = Options {
            layout: parse(layout)?,
            heap: HeapSize { publish, contribution },
            threads,
            stages: stages.map_or(Stages::Auto, Stages::Exactly),
            memory,
            ..Options::default()
        };
        let waiter = Waiter::start("longreach waiter")?;
        let (of, given) = (team.inner.clone(), options.clone());
        let cp = team.wait(py, move || ContextParallel::new(&of, &given))?;
        let cp = cp.map_err(|error| raised(py, team.me, error))?;
        Ok(Self { cp, options, me: team.me, waiter, last: Mutex::default() })
    }

    /// Bytes of symmetric memory that this rank holds.
    #[getter]
    fn heap_bytes(&self) -> usize {
        self.cp.heap_bytes()
    }

    /// Attention of this rank's queries over all ranks' keys; writes `out` and `lse`. Collective over the team.
    #[pyo3(signature = (attention, q, k, v, out, lse, keep))]
    #[allow(clippy::too_many_arguments)] // a call's tensors
    fn forward(
        &self,
        py: Python<'_>,
        attention: &Attention,
        q: &Bound<'_, PyAny>,
        k: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        lse: &Bound<'_, PyAny>,
        keep: bool,
    ) -> PyResult<Option<Saved>> {
        let [q, k, v] = [("q", q), ("k", k), ("v", v)].map(|(name, given)| self.borrow(name, given));
        let inputs = (q?, k?, v?);
        let outputs = (self.borrow("out", out)?, self.borrow("lse", lse)?);
        let [q, k, v] = [inputs.0.memory(), inputs.1.memory(), inputs.2.memory()];
        let attention = &attention.inner;
        let queued = py.detach(move || {
            // SAFETY: `inputs` are there; that nobody writes them during the call is what the package's users are told.
            let (q, k, v) = unsafe { (q.view()?, k.view()?, v.view()?) };
            let fits = Dims::of(&q, &k, &v).and_then(|dims| self.fits(attention, &dims));
            // What is wrong with the tensors themselves the engine tells the other ranks.
            match fits {
                Ok(Some(small)) => Ok(Err(small)),
                _ => Ok(Ok(self.cp.forward(&q, &k, &v, attention))),
            }
        });
        let queued: Result<Result<Forward, Error>, Small> =
            queued.map_err(|error: PyErr| self.tell(error))?;
        let forward = queued.map_err(|small| heap_too_small(py, small.text, small.heap))?;
        let forward = forward.map_err(|error| raised(py, self.me, error))?;
        let (forward, waited) = self.wait(py, move || {
            let waited = forward.out.wait().and_then(|_| forward.lse.wait()).map(drop);
            (forward, waited)
        })?;
        waited.map_err(|error| raised(py, self.me, error))?;
        self.give(
            py,
            &[("out", &forward.out, outputs.0.memory()), ("lse", &forward.lse, outputs.1.memory())],
        )?;
        Ok(keep.then(|| Saved { inner: Mutex::new(Some(forward.saved)) }))
    }

    /// Gradients of this rank's rows of a forward; writes those that are asked for. Collective over the team.
    #[pyo3(signature = (saved, dout, dq=None, dk=None, dv=None))]
    fn backward(
        &self,
        py: Python<'_>,
        saved: &Saved,
        dout: &Bound<'_, PyAny>,
        dq: Option<&Bound<'_, PyAny>>,
        dk: Option<&Bound<'_, PyAny>>,
        dv: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let dout = self.borrow("dout", dout)?;
        let [dq, dk, dv] = [("dq", dq), ("dk", dk), ("dv", dv)]
            .map(|(name, given)| given.map(|tensor| self.borrow(name, tensor)).transpose());
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let saved = saved.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        let saved = saved.ok_or_else(|| refused(
                "this forward has been differentiated already: retain_graph is not supported, call attention again",
            ))?;
        let memory = dout.memory();
        let queued = py.detach(move || {
            // SAFETY: as for the inputs of `forward`.
            let view = unsafe { memory.view()? };
            Ok(saved.backward(&view))
        });
        let queued: Result<Gradients, Error> = queued.map_err(|error: PyErr| self.tell(error))?;
        let gradients = queued.map_err(|error| raised(py, self.me, error))?;
        let (gradients, waited) = self.wait(py, move || {
            let waited = [&gradients.dq, &gradients.dk, &gradients.dv]
                .into_iter()
                .try_for_each(|output| output.wait().map(drop));
            (gradients, waited)
        })?;
        waited.map_err(|error| raised(py, self.me, error))?;
        let outputs = [("dq", &gradients.dq, &dq), ("dk", &gradients.dk, &dk), ("dv", &gradients.dv, &dv)];
        let wanted: Vec<_> = outputs
            .into_iter()
            .filter_map(|(name, output, into)| Some((name, output, into.as_ref()?.memory())))
            .collect();
        self.give(py, &wanted)?;
        *self.last() = Some(gradients);
        Ok(())
    }

    /// Refuses a call that the other ranks wait for, in this rank's name.
    fn refuse(&self, reason: &str) {
        drop(self.cp.team().refuse(reason));
    }

    /// Returns when no work of this rank is under way, also for others. Not collective.
    fn quiesce(&self, py: Python<'_>) -> PyResult<()> {
        let Some(last) = self.last().take() else { return Ok(()) };
        // A failure has been told to whoever called; here it only matters that nothing goes on.
        self.wait(py, move || drop(last.statistics()))
    }

    /// Gives the symmetric memory up. Collective over the team.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.last().take();
        let cp = self.cp.clone();
        self.wait(py, move || cp.free())?.map_err(|error| raised(py, self.me, error))
    }
}

/// Why a call does not fit, and the heap with which it would.
struct Small {
    text: String,
    heap: u64,
}

impl Engine {
    /// Whether a call fits into the heap: all ranks find the same, from what they have in common.
    fn fits(&self, attention: &longreach::Attention, dims: &Dims) -> Result<Option<Small>, Error> {
        let (_, need) = longreach::plan(self.cp.team().size(), attention, dims, &self.options)?;
        let (size, held) = (HeapSize::of(&need), self.options.heap);
        if size.publish <= held.publish && size.contribution <= held.contribution {
            return Ok(None);
        }
        let heap = heap_for(size);
        let text = format!(
            "the call needs {} bytes to publish K and V and {} for gradients of a stage, and {} and {} are reserved: \
             make ContextParallel with heap={heap}, or call reserve() with this call's sizes",
            size.publish, size.contribution, held.publish, held.contribution
        );
        Ok(Some(Small { text, heap }))
    }

    fn borrow<'py>(&self, name: &str, tensor: &Bound<'py, PyAny>) -> PyResult<Borrowed<'py>> {
        Borrowed::new(name, tensor).map_err(|error| self.tell(error))
    }

    fn last(&self) -> MutexGuard<'_, Option<Gradients>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The others would wait in vain for a call that this module refuses.
    fn tell(&self, error: PyErr) -> PyErr {
        drop(self.cp.team().refuse(&error.to_string()));
        error
    }

    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> PyResult<T> {
        self.waiter.run(py, || drop(self.cp.team().fail(INTERRUPTED)), job)
    }

    /// Copies results that are there into tensors that this call has been lent.
    fn give(&self, py: Python<'_>, results: &[(&str, &longreach::Output, Memory)]) -> PyResult<()> {
        let tensors: Result<Vec<(&str, &Tensor, Memory)>, Error> =
            results.iter().map(|&(name, output, memory)| Ok((name, output.wait()?, memory))).collect();
        let tensors = tensors.map_err(|error| raised(py, self.me, error))?;
        py.detach(move || {
            // SAFETY: the caller holds what lends them; the package has just made them, and nobody else knows of them.
            tensors.iter().try_for_each(|(name, tensor, memory)| unsafe { store(name, tensor, memory) })
        })
    }
}

/// Parts of a heap that is given as one number: two publish slots and two return slots, of which contributions, in
/// float32, take up to twice as much as 16-bit keys and values.
const PARTS: u64 = 6;

/// The slots of a heap of `heap` bytes.
#[pyfunction]
pub fn slots_of(heap: u64) -> (u64, u64) {
    let slot = heap / PARTS / 64 * 64;
    (slot, 2 * slot)
}

/// The smallest heap whose slots take a call, in whole MiB.
pub fn heap_for(size: HeapSize) -> u64 {
    const MIB: u64 = 1 << 20;
    let slot = (size.publish as u64).max((size.contribution as u64).div_ceil(2)).next_multiple_of(64);
    slot.saturating_mul(PARTS).div_ceil(MIB).saturating_mul(MIB)
}

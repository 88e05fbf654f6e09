//! Kernels of the CPU.

use super::{Operands, Role, Total};
use crate::array::Array;
use crate::context_parallel::call::{Call, Dims};
use crate::context_parallel::exchange::Rows;
use crate::context_parallel::forward::{Carried, Outputs};
use crate::context_parallel::heap::Heap;
use crate::context_parallel::returns::{Grads, Run};
use crate::error::Error;
use longreach_device::sync::process::Mutex;
use longreach_kernels::{Context, State, Tile, View, backward, delta, finish, forward};
use longreach_shmem::Team;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// No machine has so many cores: a number like this is a mistake.
const MOST: usize = 4096;

/// Enough that launching costs nothing beside it, few enough that a trace shows what happens.
const LAUNCH_FLOPS: u64 = 1 << 27;

/// Kernels on threads of their own, and how they tell that they advance.
pub(super) struct Kernels {
    pool: Option<Arc<rayon::ThreadPool>>,
    team: Team,
}

impl Kernels {
    pub(super) fn new(team: &Team, threads: usize) -> Result<Self, Error> {
        // One thread needs no pool: the stream's own worker computes.
        let pool = match threads {
            0 | 1 => None,
            MOST.. => {
                return Err(Error::NoThreads { threads, reason: format!("a PE has fewer than {MOST}") });
            }
            threads => {
                let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                Some(Arc::new(
                    built.map_err(|error| Error::NoThreads { threads, reason: error.to_string() })?,
                ))
            }
        };
        Ok(Self { pool, team: team.clone() })
    }

    fn run<T>(&self, kernel: impl FnOnce(&Context) -> T) -> T {
        let tick = || self.team.tick();
        kernel(&Context { pool: self.pool.as_deref(), tick: &tick })
    }
}

/// Views of a stage's K `[batch, rows, kv heads, head_dim]` and V `[batch, rows, kv heads, value_dim]`.
fn views<'a>(call: &Call, stage: usize, rows: &'a Rows) -> Result<(View<'a>, View<'a>), Error> {
    let [k, v] = call.kv_shapes(stage);
    Ok((
        View::contiguous(rows.k.host()?.elements().data(), k)?,
        View::contiguous(rows.v.host()?.elements().data(), v)?,
    ))
}

fn state(carried: &mut Carried) -> Result<State<'_>, Error> {
    let Carried { acc, max, sum, .. } = carried;
    Ok(State { acc: acc.f32_mut()?, max: max.f32_mut()?, sum: sum.f32_mut()? })
}

fn no_output() -> Error {
    Error::Input("there is no output in float32".to_owned())
}

impl super::Kernels for Kernels {
    fn launch_flops(&self) -> u64 {
        LAUNCH_FLOPS
    }

    fn accepts(&self, _dims: &Dims) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self, _call: &Call, carried: &mut Carried) -> Result<(), Error> {
        state(carried)?.reset();
        Ok(())
    }

    fn forward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        q: &Array,
        rows: &Rows,
        carried: &mut Carried,
    ) -> Result<(), Error> {
        let (k, v) = views(call, stage, rows)?;
        let (q, mut state) = (q.host()?.view(), state(carried)?);
        Ok(self.run(|cx| forward(cx, &q, &k, &v, call.scale, tiles, &mut state))?)
    }

    fn finish(&self, _call: &Call, carried: &mut Carried, outputs: &mut Outputs) -> Result<(), Error> {
        let exact = outputs.exact.as_mut().ok_or_else(no_output)?;
        let shape = exact.shape();
        let (state, lse) = (state(carried)?, outputs.lse.f32_mut()?);
        self.run(|cx| finish(cx, &state, shape, exact.f32_mut()?, lse).map_err(Error::from))?;
        match &mut outputs.rounded {
            Some(rounded) => rounded.round(exact),
            None => Ok(()),
        }
    }

    fn delta_len(&self, rows: usize) -> usize {
        rows
    }

    fn delta(&self, dout: &Array, outputs: &Outputs, rows: &mut Array) -> Result<(), Error> {
        let out = outputs.exact.as_ref().ok_or_else(no_output)?;
        let (dout, out, rows) = (dout.host()?.view(), out.f32()?, rows.f32_mut()?);
        Ok(self.run(|cx| delta(cx, &dout, out, rows))?)
    }

    fn clear(&self, total: &mut Total, shape: [usize; 4]) -> Result<(), Error> {
        total.array.f32_mut()?[..shape.iter().product()].fill(0.0);
        Ok(())
    }

    fn backward(
        &self,
        call: &Call,
        stage: usize,
        tiles: &[Tile],
        operands: &Operands,
        dq: &mut Total,
        grads: &mut Grads,
    ) -> Result<(), Error> {
        let Operands { q, rows, dout, outputs, delta } = operands;
        let (k, v) = views(call, stage, rows)?;
        let (q, dout) = (q.host()?.view(), dout.host()?.view());
        let (lse, delta, dq) = (outputs.lse.f32()?, delta.f32()?, dq.array.f32_mut()?);
        let [dk_len, dv_len] = call.kv_shapes(stage).map(|shape| shape.iter().product::<usize>());
        let Grads { dk, dv } = grads;
        let (dk, dv) = (&mut dk.array.f32_mut()?[..dk_len], &mut dv.array.f32_mut()?[..dv_len]);
        Ok(self.run(|cx| backward(cx, &q, &k, &v, &dout, lse, delta, call.scale, tiles, dq, dk, dv))?)
    }

    fn settle(&self, _total: &mut Total) -> Result<(), Error> {
        Ok(())
    }

    fn round(&self, total: &mut Total, _role: Role) -> Result<(), Error> {
        match &mut total.rounded {
            Some(rounded) => rounded.round(&total.array),
            None => Ok(()),
        }
    }

    fn brings(&self) -> bool {
        // Symmetric memory is reached by copies only.
        true
    }

    fn add(
        &self,
        call: &Call,
        _heap: &Heap,
        _slot: usize,
        brought: &Array,
        runs: &[Run],
        home: &mut Grads,
    ) -> Result<(), Error> {
        let arrived = brought.f32()?;
        for run in runs {
            let (total, width) =
                if run.value { (&mut home.dv, call.dims.v_row()) } else { (&mut home.dk, call.dims.k_row()) };
            let sums = &mut total.array.f32_mut()?[run.row * width..(run.row + run.rows) * width];
            let terms = &arrived[run.at..run.at + run.rows * width];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        Ok(())
    }
}

/// A link that sleeps.
pub(super) struct Link {
    rate: f64,
    began: Mutex<Instant>,
}

impl Link {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, began: Mutex::new(Instant::now()) }
    }
}

impl super::Link for Link {
    fn begin(&self) -> Result<(), Error> {
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    fn end(&self, bytes: u64) -> Result<(), Error> {
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let time = Duration::try_from_secs_f64(bytes as f64 / self.rate).unwrap_or(Duration::MAX);
        std::thread::sleep(time.saturating_sub(began.elapsed()));
        Ok(())
    }
}

//! The cost model: how many stages a call is cut into.

use crate::error::Error;
use crate::need::{Buffers, Need, Shape};
use crate::plan::{Plan, Request};
use crate::simulate::simulate;

/// What work and transfers cost. Constants, never measurements: all PEs must choose alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Operations a second of one PE.
    pub flops: f64,
    /// Bytes a second of one PE's gets.
    pub bytes: f64,
    /// Seconds that a get takes beside its bytes.
    pub get: f64,
    /// Seconds that a tile takes beside its operations.
    pub tile: f64,
    /// Seconds that a stage takes beside its tiles.
    pub stage: f64,
}

/// A CPU core with wide vectors, reading a neighbour's memory.
impl Default for Model {
    fn default() -> Self {
        Self { flops: 1e11, bytes: 5e9, get: 2e-6, tile: 2e-6, stage: 2e-5 }
    }
}

impl Model {
    /// A GPU of the Hopper generation, with a link of so many bytes a second to the others.
    pub fn gpu(bytes: f64) -> Self {
        Self { flops: 5e14, bytes, get: 5e-6, tile: 5e-6, stage: 2e-5 }
    }
}

/// The plan with the smallest predicted makespan whose need fits `memory`; of equals the one with fewer stages.
/// `request.stages` is not used.
///
/// Fails where no number of stages fits.
pub fn choose_stages(
    request: &Request,
    shape: &Shape,
    memory: Option<u64>,
    buffers: &Buffers,
    model: &Model,
) -> Result<(Plan, Need), Error> {
    let owners = request.pes.saturating_sub(1).max(1);
    let few = [1, 2, 3, 4, 6, 8, 12, 16].into_iter().filter(|&stages| stages < owners).chain([owners]);
    // Where none of these fits, owners' rows are cut further, until a stage is a row.
    let many = std::iter::successors(Some(owners), |stages| stages.checked_mul(2))
        .skip(1)
        .take_while(|&stages| stages / 2 < request.kv_len.saturating_mul(owners));
    let mut best: Option<(f64, Plan, Need)> = None;
    let mut smallest = (u64::MAX, 0);
    for stages in few.chain(many) {
        if stages > owners && best.is_some() {
            break;
        }
        let plan = Plan::new(&Request { stages, ..request.clone() })?;
        let need = plan.need(shape, buffers)?;
        smallest = smallest.min((need.total, stages));
        if memory.is_some_and(|memory| need.total > memory) {
            continue;
        }
        let makespan = simulate(&plan, shape, model).makespan;
        if best.as_ref().is_none_or(|(found, ..)| makespan < *found) {
            best = Some((makespan, plan, need));
        }
    }
    match best {
        Some((_, plan, need)) => Ok((plan, need)),
        None => {
            let (smallest, stages) = smallest;
            Err(Error::Memory { smallest, stages, bound: memory.unwrap_or(u64::MAX) })
        }
    }
}

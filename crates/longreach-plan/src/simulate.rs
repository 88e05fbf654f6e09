//! Playing a plan: what each stream of each PE would do, by the cost model.

use crate::cost::Model;
use crate::need::Shape;
use crate::plan::{PePlan, Plan};

/// Seconds of a forward, as the model has it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulation {
    /// From the start to the last PE's end.
    pub makespan: f64,
    /// Compute stream at work, the most of any PE.
    pub compute: f64,
    /// Communication stream at work, the most of any PE.
    pub comm: f64,
    /// Compute stream waiting for an arrival, the most of any PE.
    pub exposed: f64,
}

/// Slots for fetched stages: a get waits until the stage two before has been computed.
const SLOTS: usize = 2;

/// Plays the forward of `plan`.
pub fn simulate(plan: &Plan, shape: &Shape, model: &Model) -> Simulation {
    plan.pes.iter().fold(Simulation::default(), |most, pe| {
        let played = play(pe, shape, model);
        Simulation {
            makespan: most.makespan.max(played.makespan),
            compute: most.compute.max(played.compute),
            comm: most.comm.max(played.comm),
            exposed: most.exposed.max(played.exposed),
        }
    })
}

fn play(plan: &PePlan, shape: &Shape, model: &Model) -> Simulation {
    let row = (shape.kv_heads * (shape.head_dim + shape.value_dim) * shape.element_bytes) as f64;
    let pair = (shape.q_heads * 2 * (shape.head_dim + shape.value_dim)) as f64;
    let mut total = Simulation::default();
    let (mut comm_free, mut done): (f64, Vec<f64>) = (0.0, Vec::new());
    for (number, stage) in plan.stages.iter().enumerate() {
        let rows: usize = stage.gets.iter().map(|get| get.rows.len() * get.batch.len()).sum();
        let comm = rows as f64 * row / model.bytes + stage.gets.len() as f64 * model.get;
        let slot = if number > SLOTS { done[number - SLOTS] } else { 0.0 };
        let arrived = if number == 0 { 0.0 } else { comm_free.max(slot) + comm };
        comm_free = comm_free.max(arrived);
        let pairs: u64 = stage.tiles.iter().map(|tile| tile.visible_pairs()).sum();
        let compute = pairs as f64 * pair / model.flops + stage.tiles.len() as f64 * model.tile + model.stage;
        let ready = done.last().copied().unwrap_or(0.0);
        total.exposed += (arrived - ready).max(0.0);
        total.compute += compute;
        total.comm += comm;
        done.push(ready.max(arrived) + compute);
    }
    Simulation { makespan: done.last().copied().unwrap_or(0.0), ..total }
}

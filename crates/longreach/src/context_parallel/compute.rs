//! Launching tiles on the compute stream.

use super::call::{Call, Direction};
use crate::error::Error;
use longreach_device::{Kind, Label};
use longreach_kernels::{Context, flops_backward, flops_forward};
use longreach_plan::Tile;
use longreach_shmem::Team;
use std::ops::Range;
use std::sync::Arc;

/// No machine has so many cores: a number like this is a mistake.
const MOST: usize = 4096;

/// Threads for kernels, and how they tell that they advance.
#[derive(Clone)]
pub(super) struct Threads {
    pool: Option<Arc<rayon::ThreadPool>>,
    team: Team,
}

impl Threads {
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

    pub(super) fn run<T>(&self, kernel: impl FnOnce(&Context) -> T) -> T {
        let tick = || self.team.tick();
        kernel(&Context { pool: self.pool.as_deref(), tick: &tick })
    }
}

/// Tiles that one launch computes, with what they cost.
pub(super) struct Batch {
    pub(super) tiles: Range<usize>,
    pub(super) label: Label,
}

/// A launch is filled with tiles up to so many operations: enough that launching costs nothing beside it, few
/// enough that a trace shows what happens.
const LAUNCH_FLOPS: u64 = 1 << 27;

/// Cuts the tiles of a stage into launches, in order.
pub(super) fn batches(call: &Call, stage: usize) -> Vec<Batch> {
    let dims = &call.dims;
    let (heads, dk, dv) = (dims.q_heads as u64, dims.head_dim as u64, dims.value_dim as u64);
    let mut batches: Vec<Batch> = Vec::new();
    for (i, tile) in call.stage(stage).tiles.iter().enumerate() {
        let pairs = tile.visible_pairs();
        let flops = match call.direction {
            Direction::Forward => flops_forward(pairs, heads, dk, dv),
            Direction::Backward => flops_backward(pairs, heads, dk, dv),
        };
        match batches.last_mut() {
            Some(batch) if batch.label.flops + flops <= LAUNCH_FLOPS => {
                batch.tiles.end = i + 1;
                batch.label.flops += flops;
            }
            _ => batches.push(Batch { tiles: i..i + 1, label: call.label(Kind::Tile, stage).flops(flops) }),
        }
    }
    batches
}

/// The plan's tiles as kernels take them.
pub(super) fn kernel_tiles(tiles: &[Tile]) -> Vec<longreach_kernels::Tile<'_>> {
    tiles
        .iter()
        .map(|tile| longreach_kernels::Tile {
            batch: tile.batch.clone(),
            q: tile.q.clone(),
            kv: &tile.kv,
            band: &tile.band,
        })
        .collect()
}

//! The plan: who fetches which rows when, and computes which tiles.

use crate::bands::Bands;
use crate::error::Error;
use crate::layout::{Layout, Shards};
use crate::mask::Mask;
use crate::stages::{Class, Stage, stages};
use crate::tiles::BandIndex;
use std::fmt;

/// What a plan is made from: the same on all PEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Batch rows.
    pub batch: usize,
    /// Queries of all PEs.
    pub q_len: usize,
    /// Keys of all PEs.
    pub kv_len: usize,
    /// Number of PEs.
    pub pes: usize,
    /// What may see what.
    pub mask: Mask,
    /// Who holds what.
    pub layout: Layout,
    /// Fetched stages a PE, at least 1; a PE with less to fetch has fewer (no owner's rows are cut below 32 or so).
    pub stages: usize,
}

/// The plan of one PE.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PePlan {
    /// The PE.
    pub pe: usize,
    /// Queries that it holds.
    pub q_rows: usize,
    /// Keys that it holds.
    pub kv_rows: usize,
    /// Stage 0 (its own rows), then the fetched ones.
    pub stages: Vec<Stage>,
}

/// Gradients of an owner's rows that another PE computes in one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Contribution {
    /// The writer's stage.
    pub stage: usize,
    /// The PE that computes it.
    pub writer: usize,
    /// Rows, over all batch rows.
    pub rows: usize,
}

/// The plan of all PEs: the same value whoever computes it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// Batch rows.
    pub batch: usize,
    /// Who holds which queries.
    pub q_shards: Shards,
    /// Who holds which keys.
    pub kv_shards: Shards,
    /// What every query sees.
    pub bands: Bands,
    /// Each PE's plan.
    pub pes: Vec<PePlan>,
    contributions: Vec<Vec<Contribution>>,
    readers: Vec<Vec<usize>>,
}

/// Who holds which queries and which keys. Zigzag follows [`Mask::cut`], or else documents, unless batch rows have
/// different ones.
pub fn shards(
    mask: &Mask,
    layout: &Layout,
    batch: usize,
    pes: usize,
    q_len: usize,
    kv_len: usize,
) -> Result<(Shards, Shards), Error> {
    let (_, documents) = mask.resolve_with_documents(batch, q_len, kv_len)?;
    if let Some((q, kv)) = &mask.cuts {
        let (q, kv) = (q.resolve("cuts", q_len as u64)?, kv.resolve("kv_cuts", kv_len as u64)?);
        return Ok((layout.shard(q_len, pes, &q)?, layout.shard(kv_len, pes, &kv)?));
    }
    let (q, kv) = match &documents[..] {
        [(q, kv)] => (q.as_slice(), kv.as_slice()),
        _ => (&[][..], &[][..]),
    };
    Ok((layout.shard(q_len, pes, q)?, layout.shard(kv_len, pes, kv)?))
}

impl Plan {
    /// Plans `request`. Fails when mask, layout and lengths do not fit each other.
    pub fn new(request: &Request) -> Result<Self, Error> {
        let Request { batch, q_len, kv_len, pes, mask, layout, stages: count } = request;
        if *count == 0 {
            return Err(Error::Count {
                what: "stages",
                given: 0,
                expected: "at least 1 (stage 0, a PE's own rows, does not count)",
            });
        }
        let bands = mask.resolve(*batch, *q_len, *kv_len)?;
        let (q_shards, kv_shards) = shards(mask, layout, *batch, *pes, *q_len, *kv_len)?;
        let classes: Vec<Class> = bands
            .classes(*batch)
            .into_iter()
            .map(|(row, batch)| Class { batch, bands: BandIndex::new(bands.row(row)) })
            .collect();
        let plans: Vec<PePlan> = (0..*pes)
            .map(|pe| PePlan {
                pe,
                q_rows: q_shards.len(pe),
                kv_rows: kv_shards.len(pe),
                stages: stages(pe, &q_shards, &kv_shards, &classes, *count),
            })
            .collect();
        drop(classes);
        let mut contributions: Vec<Vec<Contribution>> = vec![Vec::new(); *pes];
        for plan in &plans {
            for (stage, of) in plan.stages.iter().enumerate() {
                for get in &of.gets {
                    let rows = get.rows.len() * get.batch.len();
                    match contributions[get.owner].last_mut() {
                        Some(last) if (last.stage, last.writer) == (stage, plan.pe) => last.rows += rows,
                        _ => contributions[get.owner].push(Contribution { stage, writer: plan.pe, rows }),
                    }
                }
            }
        }
        let readers = contributions
            .iter()
            .map(|list| {
                let mut writers: Vec<usize> = list.iter().map(|contribution| contribution.writer).collect();
                writers.dedup();
                writers
            })
            .collect();
        contributions.iter_mut().for_each(|list| list.sort());
        Ok(Self { batch: *batch, q_shards, kv_shards, bands, pes: plans, contributions, readers })
    }

    /// What other PEs contribute to the gradients of `owner`'s rows, in the order in which it is added.
    pub fn contributions(&self, owner: usize) -> &[Contribution] {
        &self.contributions[owner]
    }

    /// The PEs that fetch rows from `owner`.
    pub fn readers(&self, owner: usize) -> &[usize] {
        &self.readers[owner]
    }

    /// Fetched stages, the most of any PE.
    pub fn stages(&self) -> usize {
        self.pes.iter().map(|plan| plan.stages.len() - 1).max().unwrap_or(0)
    }

    /// Rows that a ring would move in one direction: every PE's rows past every other PE.
    pub fn ring_rows(&self) -> u64 {
        (self.pes.len() as u64 - 1) * self.kv_shards.total() as u64 * self.batch as u64
    }
}

impl PePlan {
    /// Rows that the PE fetches, over all batch rows.
    pub fn rows_fetched(&self) -> u64 {
        self.stages
            .iter()
            .flat_map(|stage| &stage.gets)
            .map(|get| (get.rows.len() * get.batch.len()) as u64)
            .sum()
    }

    /// Visible (query, key) pairs of the PE's queries, over all batch rows.
    pub fn visible_pairs(&self) -> u64 {
        self.stages.iter().flat_map(|stage| &stage.tiles).map(|tile| tile.visible_pairs()).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} queries, {} keys, batch {}, {} PEs, {} fetched stages",
            self.q_shards.total(),
            self.kv_shards.total(),
            self.batch,
            self.pes.len(),
            self.stages()
        )?;
        self.pes.iter().try_for_each(|plan| plan.fmt(f))
    }
}

impl fmt::Display for PePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "PE {}: {} queries, {} keys, fetches {} rows",
            self.pe,
            self.q_rows,
            self.kv_rows,
            self.rows_fetched()
        )?;
        for (number, stage) in self.stages.iter().enumerate() {
            writeln!(f, "  stage {number}: {} rows", stage.rows)?;
            for get in &stage.gets {
                writeln!(
                    f,
                    "    get from PE {} rows {:?} of batch {:?} to {}",
                    get.owner, get.rows, get.batch, get.at
                )?;
            }
            for tile in &stage.tiles {
                writeln!(
                    f,
                    "    tile batch {:?} q {:?} kv {:?} sees {} .. {}",
                    tile.batch, tile.q, tile.kv, tile.band.lo, tile.band.hi
                )?;
            }
        }
        Ok(())
    }
}

//! Stages: what a PE fetches, cut into pieces that arrive one after another.

use crate::layout::{Run, Shards};
use crate::tiles::{BandIndex, Piece, Pieces, Tile, needed, tiles};
use std::ops::Range;

/// A get of consecutive rows of one owner.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Get {
    /// The PE that holds the rows.
    pub owner: usize,
    /// Batch rows.
    pub batch: Range<usize>,
    /// Local rows of the owner.
    pub rows: Range<usize>,
    /// Row of the stage's buffer that the first one goes to.
    pub at: usize,
}

/// One stage of a PE's plan. Stage 0 is the PE's own rows, without gets.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stage {
    /// Rows a batch row that the stage's buffer holds.
    pub rows: usize,
    /// What is fetched.
    pub gets: Vec<Get>,
    /// What is computed.
    pub tiles: Vec<Tile>,
}

/// Batch rows with the same bands.
pub(crate) struct Class<'b> {
    pub(crate) batch: Vec<Range<usize>>,
    pub(crate) bands: BandIndex<'b>,
}

impl Class<'_> {
    fn count(&self) -> usize {
        self.batch.iter().map(|range| range.len()).sum()
    }
}

/// What a PE needs of an owner: local row ranges for each class.
struct Needed {
    owner: usize,
    rows: Vec<Vec<Range<usize>>>,
}

/// The stages of PE `pe`, of which `count` at most are fetched.
pub(crate) fn stages(pe: usize, q: &Shards, kv: &Shards, classes: &[Class], count: usize) -> Vec<Stage> {
    let q = q.runs(pe);
    let own = [Pieces::consecutive(kv.runs(pe), 0)];
    let mut stages = vec![Stage {
        rows: kv.len(pe),
        gets: Vec::new(),
        tiles: classes
            .iter()
            .flat_map(|class| class.batch.iter().flat_map(|batch| tiles(q, &own, &class.bands, batch)))
            .collect(),
    }];
    let pes = kv.pes();
    let remote: Vec<Needed> = (1..pes)
        .map(|step| (pe + step) % pes)
        .map(|owner| {
            let pieces = Pieces::consecutive(kv.runs(owner), 0);
            Needed { owner, rows: classes.iter().map(|class| needed(q, &pieces, &class.bands)).collect() }
        })
        .filter(|needed| needed.rows.iter().any(|rows| !rows.is_empty()))
        .collect();
    for group in cut(remote, classes, count) {
        stages.push(fetched(&group, q, kv, classes));
    }
    stages
}

fn rows(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(|range| range.len()).sum()
}

/// Owners' rows are not cut into parts of fewer rows: each part rescales what a row carries, and a rounding a key or two
/// would be seen in the results.
const LEAST_ROWS: usize = 32;

/// Cuts what is needed into `count` groups at most: between owners while there are enough of them, else every
/// owner's rows into parts.
fn cut(remote: Vec<Needed>, classes: &[Class], count: usize) -> Vec<Vec<Needed>> {
    let owners = remote.len();
    if owners == 0 {
        return Vec::new();
    }
    if count <= owners {
        let weight = |needed: &Needed| -> usize {
            needed.rows.iter().zip(classes).map(|(ranges, class)| rows(ranges) * class.count()).sum()
        };
        let total: usize = remote.iter().map(weight).sum();
        let mut groups: Vec<Vec<Needed>> = vec![Vec::new()];
        let mut before = 0;
        for (i, needed) in remote.into_iter().enumerate() {
            let full = groups.len() < count
                && groups.last().is_some_and(|group| !group.is_empty())
                // Half of this owner beyond the even share, or only enough owners left for one a group.
                && ((2 * before + weight(&needed)) * count > 2 * total * groups.len()
                    || owners - i <= count - groups.len());
            before += weight(&needed);
            if full {
                groups.push(vec![needed]);
            } else if let Some(group) = groups.last_mut() {
                group.push(needed);
            }
        }
        return groups;
    }
    let mut groups = Vec::new();
    for (i, needed) in remote.into_iter().enumerate() {
        let most = needed.rows.iter().map(|ranges| rows(ranges)).max().unwrap_or(0).div_ceil(LEAST_ROWS);
        let parts = (count / owners + usize::from(i < count % owners)).min(most);
        for part in 0..parts {
            let rows: Vec<_> = needed.rows.iter().map(|ranges| slice(ranges, part, parts)).collect();
            if rows.iter().any(|rows| !rows.is_empty()) {
                groups.push(vec![Needed { owner: needed.owner, rows }]);
            }
        }
    }
    groups
}

/// Part `part` of `parts` even ones of the rows in `ranges`.
fn slice(ranges: &[Range<usize>], part: usize, parts: usize) -> Vec<Range<usize>> {
    let total = rows(ranges);
    let wanted = (total as u128 * part as u128 / parts as u128) as usize
        ..(total as u128 * (part as u128 + 1) / parts as u128) as usize;
    let mut before = 0;
    let mut out = Vec::new();
    for range in ranges {
        let from = wanted.start.max(before);
        let to = wanted.end.min(before + range.len());
        if from < to {
            out.push(range.start + from - before..range.start + to - before);
        }
        before += range.len();
    }
    out
}

fn fetched(group: &[Needed], q: &[Run], kv: &Shards, classes: &[Class]) -> Stage {
    let mut stage = Stage { rows: 0, gets: Vec::new(), tiles: Vec::new() };
    for (c, class) in classes.iter().enumerate() {
        let mut at = 0;
        let mut owners = Vec::with_capacity(group.len());
        for needed in group {
            let mut pieces = Vec::new();
            for range in &needed.rows[c] {
                for batch in &class.batch {
                    stage.gets.push(Get {
                        owner: needed.owner,
                        batch: batch.clone(),
                        rows: range.clone(),
                        at,
                    });
                }
                pieces.extend(parts(kv.runs(needed.owner), range, at));
                at += range.len();
            }
            owners.push(Pieces::new(pieces));
        }
        stage.rows = stage.rows.max(at);
        for batch in &class.batch {
            stage.tiles.extend(tiles(q, &owners, &class.bands, batch));
        }
    }
    // All gets of an owner together, whatever batch rows they are for.
    let place = |owner: usize| group.iter().position(|needed| needed.owner == owner);
    stage.gets.sort_by_key(|get| place(get.owner));
    stage
}

/// The local rows `range` of `runs`, which go to a buffer's rows from `at`.
fn parts(runs: &[Run], range: &Range<usize>, at: usize) -> Vec<Piece> {
    let local = Pieces::consecutive(runs, 0);
    let mut pieces = Vec::new();
    for piece in local.rows() {
        let from = range.start.max(piece.row);
        let to = range.end.min(piece.row + piece.run.len);
        if from < to {
            let run = piece.run.part(from - piece.row..to - piece.row);
            pieces.push(Piece { row: at + from - range.start, run });
        }
    }
    pieces
}

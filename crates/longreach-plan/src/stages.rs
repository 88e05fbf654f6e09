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

/// Rows of fewer than so many side by side are left in their owner's order.
const LONG: usize = 64;

fn fetched(group: &[Needed], q: &[Run], kv: &Shards, classes: &[Class]) -> Stage {
    let mut stage = Stage { rows: 0, gets: Vec::new(), tiles: Vec::new() };
    for (c, class) in classes.iter().enumerate() {
        let (pulled, rows) = pulled(group, kv, c);
        let pieces = pulled.iter().flat_map(|pull| pull.pieces.iter().copied()).collect();
        for pull in &pulled {
            stage.gets.extend(class.batch.iter().map(|batch| Get {
                owner: pull.owner,
                batch: batch.clone(),
                rows: pull.rows.clone(),
                at: pull.at,
            }));
        }
        stage.rows = stage.rows.max(rows);
        let owners = [Pieces::new(pieces)];
        for batch in &class.batch {
            stage.tiles.extend(tiles(q, &owners, &class.bands, batch));
        }
    }
    // All gets of an owner together, whatever batch rows they are for.
    let place = |owner: usize| group.iter().position(|needed| needed.owner == owner);
    stage.gets.sort_by_key(|get| place(get.owner));
    stage
}

/// Consecutive rows of an owner, and where they go.
struct Pull {
    owner: usize,
    rows: Range<usize>,
    at: usize,
    pieces: Vec<Piece>,
}

/// The pulls of class `c`, and the rows that they fill. Where they are long they lie in the order of their positions,
/// so that what a tile sees is side by side, whatever owners it comes from.
fn pulled(group: &[Needed], kv: &Shards, c: usize) -> (Vec<Pull>, usize) {
    let mut pulls: Vec<Pull> = Vec::new();
    let mut at = 0;
    for needed in group {
        for range in &needed.rows[c] {
            let pieces = parts(kv.runs(needed.owner), range, at);
            pulls.push(Pull { owner: needed.owner, rows: range.clone(), at, pieces });
            at += range.len();
        }
    }
    let split: usize = pulls.iter().map(|pull| pull.pieces.len()).sum();
    if split * LONG > at || pulls.iter().flat_map(|pull| &pull.pieces).any(|piece| piece.run.step != 1) {
        return (pulls, at);
    }
    let mut single: Vec<Pull> = pulls
        .into_iter()
        .flat_map(|Pull { owner, rows, at, pieces }| {
            pieces.into_iter().map(move |piece| {
                let first = rows.start + piece.row - at;
                Pull { owner, rows: first..first + piece.run.len, at: piece.row, pieces: vec![piece] }
            })
        })
        .collect();
    single.sort_by_key(|pull| pull.pieces.first().map(|piece| piece.run.start));
    let mut next = 0;
    for pull in &mut single {
        pull.at = next;
        pull.pieces.iter_mut().for_each(|piece| piece.row = next);
        next += pull.rows.len();
    }
    (single, at)
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

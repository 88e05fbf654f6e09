//! Tiles: which rows meet which keys, as one kernel call takes them.

use crate::band::{Band, Edge};
use crate::layout::Run;
use std::ops::Range;

/// Query rows against a gathered list of key rows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tile {
    /// Batch rows that the tile covers.
    pub batch: Range<usize>,
    /// Local query rows.
    pub q: Range<usize>,
    /// Rows of the stage's buffer (in stage 0 the PE's own rows), in gathered order.
    pub kv: Vec<Range<usize>>,
    /// What each row sees: rows count from `q.start`, keys in gathered order.
    pub band: Band,
}

impl Tile {
    /// Gathered keys.
    pub fn keys(&self) -> usize {
        self.kv.iter().map(|range| range.len()).sum()
    }

    /// Visible (query, key) pairs, over all its batch rows.
    pub fn visible_pairs(&self) -> u64 {
        let pairs = self.band.pairs(self.keys() as i64) * self.batch.len() as u128;
        u64::try_from(pairs).unwrap_or(u64::MAX)
    }
}

/// Rows of a buffer that hold a run of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// First row of the buffer.
    pub(crate) row: usize,
    pub(crate) run: Run,
}

/// Pieces of one owner, looked up by position.
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    /// All steps are 1 and positions ascend, so that a look-up may search.
    sorted: bool,
}

impl Pieces {
    /// The runs of `runs`, one behind another from row `row`.
    pub(crate) fn consecutive(runs: &[Run], row: usize) -> Self {
        let mut next = row;
        let pieces = runs
            .iter()
            .map(|&run| {
                let piece = Piece { row: next, run };
                next += run.len;
                piece
            })
            .collect();
        Self::new(pieces)
    }

    pub(crate) fn new(pieces: Vec<Piece>) -> Self {
        let sorted = pieces.iter().all(|piece| piece.run.step == 1)
            && pieces.is_sorted_by(|a, b| a.run.start + a.run.len <= b.run.start);
        Self { pieces, sorted }
    }

    /// The pieces that may hold positions of `keys`.
    fn near(&self, keys: Range<i64>) -> &[Piece] {
        if !self.sorted {
            return &self.pieces;
        }
        let end = |piece: &Piece| (piece.run.start + piece.run.len) as i64;
        let first = self.pieces.partition_point(|piece| end(piece) <= keys.start);
        let last = self.pieces.partition_point(|piece| (piece.run.start as i64) < keys.end);
        &self.pieces[first..last.max(first)]
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }
}

/// Bands in order of their first row, looked up by rows.
pub(crate) struct BandIndex<'b> {
    bands: &'b [Band],
    /// The largest end among the bands up to here.
    ends: Vec<i64>,
}

impl<'b> BandIndex<'b> {
    pub(crate) fn new(bands: &'b [Band]) -> Self {
        debug_assert!(bands.is_sorted_by_key(|band| band.q.start));
        let mut end = i64::MIN;
        let ends = bands.iter().map(|band| {
            end = end.max(band.q.end);
            end
        });
        Self { ends: ends.collect(), bands }
    }

    /// The bands that speak of positions in `rows`.
    fn touching(&self, rows: Range<i64>) -> impl Iterator<Item = &'b Band> {
        let first = self.ends.partition_point(|&end| end <= rows.start);
        let last = self.bands.partition_point(|band| band.q.start < rows.end);
        let start = rows.start;
        self.bands[first..last.max(first)].iter().filter(move |band| band.q.end > start)
    }
}

/// What one run of rows sees of one piece, in rows of the run and keys of the piece: each band on rows that see a
/// key, with all its keys inside the piece.
fn local_bands(rows: &Run, piece: &Piece, band: &Band) -> Vec<Band> {
    let keys = &piece.run;
    let inside = Band { q: 0..rows.len as i64, lo: Edge::Fixed(0), hi: Edge::Fixed(keys.len as i64) };
    let local = |edge: Edge| {
        // Row a stands at rows.start + a * step, key b at keys.start + b * step: an edge at position x begins at
        // the first b that is not before x.
        let (start, step) = (keys.start as i64, keys.step as i64);
        match edge {
            Edge::Fixed(n) => Edge::Fixed(ceil_div(n.saturating_sub(start), step)),
            Edge::Diagonal(n) => Edge::Diagonal(ceil_div(rows.start as i64 + n - start, step)),
        }
    };
    let (start, step) = (rows.start as i64, rows.step as i64);
    let q = ceil_div(band.q.start - start, step)..ceil_div(band.q.end - start, step);
    let diagonal = matches!(band.lo, Edge::Diagonal(_)) || matches!(band.hi, Edge::Diagonal(_));
    if rows.step == keys.step || !diagonal {
        return Band { q, lo: local(band.lo), hi: local(band.hi) }.intersect(&inside);
    }
    // Steps differ: each row is a case of its own.
    let mut bands = Vec::new();
    for a in q.start.max(0)..q.end.min(rows.len as i64) {
        let position = start + a * step;
        let at = |edge: Edge| {
            Edge::Fixed(ceil_div(edge.at(position).saturating_sub(keys.start as i64), keys.step as i64))
        };
        bands.extend(Band { q: a..a + 1, lo: at(band.lo), hi: at(band.hi) }.intersect(&inside));
    }
    bands
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0)
}

/// The positions of `rows`' part that `band` speaks of, as keys that they may see.
fn reach(rows: &Run, band: &Band) -> Option<Range<i64>> {
    let span = rows.start as i64..(rows.start + (rows.len - 1) * rows.step) as i64 + 1;
    let (first, last) = (span.start.max(band.q.start), span.end.min(band.q.end) - 1);
    (first <= last).then(|| band.lo.at(first)..band.hi.at(last))
}

fn span(rows: &Run) -> Range<i64> {
    rows.start as i64..(rows.start + (rows.len - 1) * rows.step) as i64 + 1
}

/// The rows of `pieces` that some row of `q` sees: ascending ranges, disjoint and not adjacent.
pub(crate) fn needed(q: &[Run], pieces: &Pieces, bands: &BandIndex) -> Vec<Range<usize>> {
    let mut needed: Vec<Range<usize>> = Vec::new();
    for rows in q {
        for band in bands.touching(span(rows)) {
            let Some(keys) = reach(rows, band) else { continue };
            for piece in pieces.near(keys) {
                for local in local_bands(rows, piece, band) {
                    // Diagonal edges move by one key a row, so the rows together see an interval.
                    let (from, to) = (local.lo.at(local.q.start), local.hi.at(local.q.end - 1));
                    needed.push(piece.row + from as usize..piece.row + to as usize);
                }
            }
        }
    }
    merge(needed)
}

fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// A piece's keys that the rows of a segment see.
struct Part {
    row: usize,
    lo: Edge,
    hi: Edge,
}

/// The tiles of the rows `q` (local rows count through the runs) against `owners`' pieces, for the batch rows
/// `batch`. Every visible pair is in exactly one tile.
pub(crate) fn tiles(q: &[Run], owners: &[Pieces], bands: &BandIndex, batch: &Range<usize>) -> Vec<Tile> {
    let mut tiles: Vec<Tile> = Vec::new();
    let mut first = 0;
    for rows in q {
        for band in bands.touching(span(rows)) {
            let Some(keys) = reach(rows, band) else { continue };
            let mut seen: Vec<(Band, usize)> = Vec::new();
            for piece in owners.iter().flat_map(|owner| owner.near(keys.clone())) {
                seen.extend(local_bands(rows, piece, band).into_iter().map(|local| (local, piece.row)));
            }
            for segment in segments(&seen) {
                let parts: Vec<Part> = seen
                    .iter()
                    .filter(|(local, _)| local.q.start <= segment.start && segment.end <= local.q.end)
                    .map(|(local, row)| Part { row: *row, lo: local.lo, hi: local.hi })
                    .collect();
                combine(&mut tiles, parts, &segment, first, batch);
            }
        }
        first += rows.len;
    }
    tiles
}

/// The rows of `seen`, cut wherever a band begins or ends.
fn segments(seen: &[(Band, usize)]) -> Vec<Range<i64>> {
    let mut cuts: Vec<i64> = seen.iter().flat_map(|(local, _)| [local.q.start, local.q.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Adds the tiles of one segment: what is seen in full side by side, in front of it one part whose beginning moves,
/// behind it one whose end moves; other parts that move are tiles of their own.
fn combine(
    tiles: &mut Vec<Tile>,
    parts: Vec<Part>,
    segment: &Range<i64>,
    first: usize,
    batch: &Range<usize>,
) {
    let (mut front, mut full, mut back, mut alone) = (None, Vec::new(), None, Vec::new());
    for part in parts {
        match (part.lo, part.hi) {
            (Edge::Fixed(_), Edge::Fixed(_)) => full.push(part),
            (Edge::Diagonal(_), Edge::Fixed(_)) if front.is_none() => front = Some(part),
            (Edge::Fixed(_), Edge::Diagonal(_)) if back.is_none() => back = Some(part),
            _ => alone.push(part),
        }
    }
    full.sort_by_key(|part| part.row);
    let main: Vec<Part> = front.into_iter().chain(full).chain(back).collect();
    let groups = std::iter::once(main).chain(alone.into_iter().map(|part| vec![part]));
    for group in groups.filter(|group| !group.is_empty()) {
        let tile = gather(&group, segment, first, batch);
        match tiles.last_mut() {
            // Rows that see the same keys, all of them, are one tile.
            Some(last) if joins(last, &tile) => {
                last.q.end = tile.q.end;
                last.band.q.end += tile.band.q.end;
            }
            _ => tiles.push(tile),
        }
    }
}

fn joins(last: &Tile, next: &Tile) -> bool {
    let fixed = |edge: Edge| matches!(edge, Edge::Fixed(_));
    last.batch == next.batch
        && last.q.end == next.q.start
        && last.kv == next.kv
        && (last.band.lo, last.band.hi) == (next.band.lo, next.band.hi)
        && fixed(last.band.lo)
        && fixed(last.band.hi)
}

fn gather(group: &[Part], segment: &Range<i64>, first: usize, batch: &Range<usize>) -> Tile {
    let mut kv: Vec<Range<usize>> = Vec::new();
    let mut keys = 0i64;
    let mut edges = (Edge::Fixed(0), Edge::Fixed(0));
    for (i, part) in group.iter().enumerate() {
        let (from, to) = (part.lo.at(segment.start), part.hi.at(segment.end - 1));
        // Key `from` of the piece is key `keys` of the tile.
        let shift = from - keys;
        if i == 0 {
            edges.0 = part.lo.relative(segment.start, shift);
        }
        keys += to - from;
        edges.1 = part.hi.relative(segment.start, shift);
        let rows = part.row + from as usize..part.row + to as usize;
        match kv.last_mut() {
            Some(last) if last.end == rows.start => last.end = rows.end,
            _ => kv.push(rows),
        }
    }
    let rows = segment.end - segment.start;
    Tile {
        batch: batch.clone(),
        q: first + segment.start as usize..first + segment.end as usize,
        kv,
        band: Band { q: 0..rows, lo: edges.0, hi: edges.1 },
    }
}

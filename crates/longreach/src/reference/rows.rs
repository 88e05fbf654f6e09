//! Which keys the rows of a block see, cut into tiles of keys.

use longreach_plan::{Band, Bands};
use std::ops::Range;

/// Query rows worked on together, so that a tile of keys is read from the cache by all of them.
pub(super) const ROWS: usize = 16;
/// Keys of a tile.
pub(super) const KEYS: usize = 64;

/// The bands of batch row `batch`.
pub(super) fn bands_of(bands: &Bands, batch: usize) -> &[Band] {
    if bands.rows.len() == 1 { &bands.rows[0] } else { &bands.rows[batch] }
}

/// The intervals of keys that row `row` sees, non-empty, in the order of the bands.
pub(super) fn visible(bands: &[Band], row: usize, kv_len: usize) -> Vec<Range<usize>> {
    let position = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    bands
        .iter()
        .filter(|band| band.q.contains(&position(row)))
        .map(|band| band.visible(position(row), position(kv_len)))
        .filter(|keys| !keys.is_empty())
        .map(|keys| keys.start as usize..keys.end as usize)
        .collect()
}

/// The part of each interval that lies in `tile`.
pub(super) fn cut<'a>(
    intervals: &'a [Range<usize>],
    tile: &'a Range<usize>,
) -> impl Iterator<Item = Range<usize>> + 'a {
    intervals
        .iter()
        .map(|keys| keys.start.max(tile.start)..keys.end.min(tile.end))
        .filter(|keys| keys.start < keys.end)
}

/// The tiles between the first and the last key that any of `rows` sees.
pub(super) fn tiles(rows: &[Vec<Range<usize>>]) -> impl Iterator<Item = Range<usize>> + use<> {
    let all = || rows.iter().flatten();
    let first = all().map(|keys| keys.start).min().unwrap_or(0);
    let last = all().map(|keys| keys.end).max().unwrap_or(first);
    (first / KEYS..last.div_ceil(KEYS)).map(|tile| tile * KEYS..(tile + 1) * KEYS)
}

//! Tiles cut into calls that a library kernel takes: every row sees a key, the mask is full, causal, bottom-right
//! causal or a window, and what the call needs fits under a cap.

use super::cudnn::Bound;
use crate::error::Error;
use crate::tile::{Gather, Tile};
use longreach_plan::{Band, Edge};
use std::ops::Range;

/// One call of a library kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Batch entries.
    pub batch: Range<usize>,
    /// Key heads, with all query heads that share them.
    pub kv_heads: Range<usize>,
    /// Query rows of the view.
    pub q: Range<usize>,
    /// Key rows of the view, in gathered order.
    pub kv: Vec<Range<usize>>,
    /// Who sees what.
    pub bound: Bound,
}

impl Call {
    /// Number of keys.
    pub fn keys(&self) -> usize {
        self.kv.iter().map(Range::len).sum()
    }
}

/// Bytes that one batch entry and one key head of a call need, by its query rows and keys.
pub(super) type Need<'a> = &'a dyn Fn(usize, usize) -> usize;

/// The calls for `tiles`, in order; `kv_heads` is how many there are.
pub(super) fn calls(tiles: &[Tile], kv_heads: usize, need: Need, most: usize) -> Result<Vec<Call>, Error> {
    let mut calls = Vec::new();
    for tile in tiles {
        let gather = Gather::new(tile.kv);
        let mut bands = cut(tile.band, tile.q.len(), gather.keys());
        bands.reverse();
        while let Some(band) = bands.pop() {
            let (rows, keys) = extent(&band);
            let head = need(rows.len(), keys.len());
            if head > most {
                let parts = halves(&band);
                if parts.len() < 2 {
                    return Err(Error::Refused(format!(
                        "a workspace of {most} bytes: one query with one key needs {head}; raise it"
                    )));
                }
                bands.extend(parts.into_iter().rev());
                continue;
            }
            let q = rows.start + tile.q.start..rows.end + tile.q.start;
            let kv = joined(gather.pieces(keys.clone()));
            let all = head.saturating_mul(kv_heads);
            let (batches, heads) =
                if all <= most { (most / all.max(1), kv_heads) } else { (1, most / head.max(1)) };
            for batch in even(tile.batch.clone(), batches) {
                for kv_heads in even(0..kv_heads, heads) {
                    let (batch, q, kv) = (batch.clone(), q.clone(), kv.clone());
                    calls.push(Call { batch, kv_heads, q, kv, bound: bound(&band) });
                }
            }
        }
    }
    Ok(calls)
}

/// Ranges of which none begins where the one before it ends.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// `range` in as few parts of at most `most` as it takes, all about the same.
fn even(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = range.len().div_ceil(most.max(1));
    let at = move |part: usize| range.start + range.len() * part / parts.max(1);
    (0..parts).map(move |part| at(part)..at(part + 1))
}

/// The band on `rows` rows and `keys` keys as disjoint bands whose edges stay within the keys and between which every
/// row sees a key.
fn cut(band: &Band, rows: usize, keys: usize) -> Vec<Band> {
    band.intersect(&Band { q: 0..rows as i64, lo: Edge::Fixed(0), hi: Edge::Fixed(keys as i64) })
}

/// The rows of a band from [`cut`], and the keys that they see between them.
fn extent(band: &Band) -> (Range<usize>, Range<usize>) {
    let (first, last) = (band.q.start, band.q.end - 1);
    let keys = band.lo.at(first) as usize..band.hi.at(last) as usize;
    (first as usize..band.q.end as usize, keys)
}

/// Rows and keys of [`extent`] both counted from 0.
fn bound(band: &Band) -> Bound {
    if band.q.end - band.q.start == 1 {
        return Bound::FULL;
    }
    let first = band.lo.at(band.q.start);
    let left = matches!(band.lo, Edge::Diagonal(_)).then_some(0);
    let right = matches!(band.hi, Edge::Diagonal(_)).then(|| band.hi.at(band.q.start) - first - 1);
    Bound { left, right }
}

/// A band from [`cut`] in two or more, along its longer side.
fn halves(band: &Band) -> Vec<Band> {
    let (rows, keys) = extent(band);
    if rows.len() >= keys.len() {
        let middle = band.q.start + (rows.len() / 2) as i64;
        let parts = [band.q.start..middle, middle..band.q.end];
        return parts.into_iter().filter(|q| !q.is_empty()).map(|q| Band { q, ..*band }).collect();
    }
    let middle = keys.start + keys.len() / 2;
    let part = |keys: Range<usize>| {
        let (lo, hi) = (Edge::Fixed(keys.start as i64), Edge::Fixed(keys.end as i64));
        band.intersect(&Band { q: band.q.clone(), lo, hi })
    };
    [part(keys.start..middle), part(middle..keys.end)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sees(bound: Bound, row: i64, key: i64) -> bool {
        bound.right.is_none_or(|right| key <= row + right) && bound.left.is_none_or(|left| key >= row - left)
    }

    /// (batch, key head, query row, key row) of all visible pairs, as often as they are computed.
    fn pairs(calls: &[Call]) -> Vec<[usize; 4]> {
        let mut found = Vec::new();
        for call in calls {
            for b in call.batch.clone() {
                for h in call.kv_heads.clone() {
                    for (i, row) in call.q.clone().enumerate() {
                        let keys = call.kv.iter().cloned().flatten().enumerate();
                        let seen = keys.filter(|&(j, _)| sees(call.bound, i as i64, j as i64));
                        let before = found.len();
                        found.extend(seen.map(|(_, key)| [b, h, row, key]));
                        assert!(found.len() > before, "a row of {call:?} sees nothing");
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn every_pair_is_computed_once_under_any_cap() {
        let need = |rows: usize, keys: usize| 3 * rows + 2 * keys;
        let edges = |n| [Edge::Fixed(n), Edge::Diagonal(n)];
        let kv = [20..23, 4..9, 12..14];
        let mut most_calls = 0;
        for lo in (-6..10).step_by(4).flat_map(edges) {
            for hi in (-4..13).step_by(4).flat_map(edges) {
                for (q, most) in [(0..9, 1 << 20), (0..9, 40), (2..7, 60), (0..9, 5), (0..9, 200)] {
                    let band = Band { q, lo, hi };
                    let tile = Tile { batch: 1..4, q: 3..11, kv: &kv, band: &band };
                    let calls = calls(&[tile], 5, &need, most).expect("calls");
                    for call in &calls {
                        let units = call.batch.len() * call.kv_heads.len();
                        assert!(units * need(call.q.len(), call.keys()) <= most, "{call:?} over {most}");
                        assert!(call.bound.left.is_none() || call.q.len() <= call.keys(), "{call:?}");
                        assert!(call.bound.right.is_none_or(|right| right >= 0), "{call:?}");
                    }
                    let mut expected = Vec::new();
                    let gathered: Vec<usize> = kv.iter().cloned().flatten().collect();
                    for b in 1..4 {
                        for h in 0..5 {
                            for t in band.q.clone().filter(|t| (0..8).contains(t)) {
                                let seen = band.visible(t, gathered.len() as i64);
                                expected.extend(seen.map(|g| [b, h, t as usize + 3, gathered[g as usize]]));
                            }
                        }
                    }
                    expected.sort_unstable();
                    assert_eq!(pairs(&calls), expected, "{band:?} under {most}");
                    most_calls = most_calls.max(calls.len());
                }
            }
        }
        assert!(most_calls > 100, "the caps cut nothing: {most_calls}");
    }

    #[test]
    fn ranges_that_lie_side_by_side_are_one() {
        assert_eq!(joined([5..7, 7..9, 3..5, 9..10].into_iter()), [5..9, 3..5, 9..10]);
    }

    #[test]
    fn masks_become_what_cudnn_takes() {
        let one = |lo, hi, q: Range<usize>, keys: usize| {
            let band = Band { q: 0..q.len() as i64, lo, hi };
            let kv = 0..keys;
            let tile = Tile { batch: 0..1, q, kv: std::slice::from_ref(&kv), band: &band };
            let calls = calls(&[tile], 2, &|_, _| 1, 64).expect("calls");
            calls.into_iter().map(|call| (call.q.clone(), call.keys(), call.bound)).collect::<Vec<_>>()
        };
        let causal = |right| Bound { left: None, right: Some(right) };
        let full = one(Edge::Fixed(-3), Edge::Fixed(99), 0..8, 10);
        assert_eq!(full, [(0..8, 10, Bound::FULL)]);
        assert_eq!(one(Edge::Fixed(0), Edge::Diagonal(1), 0..8, 8), [(0..8, 8, causal(0))]);
        assert_eq!(one(Edge::Fixed(0), Edge::Diagonal(5), 0..8, 12), [(0..8, 12, causal(4))]);
        // The first rows see nothing and go.
        assert_eq!(one(Edge::Fixed(0), Edge::Diagonal(-2), 0..8, 8), [(3..8, 5, causal(0))]);
        let window = one(Edge::Diagonal(-2), Edge::Diagonal(1), 0..8, 8);
        assert_eq!(window, [(0..2, 2, causal(0)), (2..8, 8, Bound { left: Some(0), right: Some(2) })]);
        let (kv, band) = (0..1, Band { q: 0..1, lo: Edge::Fixed(0), hi: Edge::Fixed(1) });
        let tile = Tile { batch: 0..1, q: 0..1, kv: std::slice::from_ref(&kv), band: &band };
        let refused = calls(&[tile], 1, &|_, _| 65, 64);
        assert!(matches!(refused, Err(Error::Refused(text)) if text.contains("64 bytes")));
    }
}

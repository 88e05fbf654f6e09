//! Bands: which keys a query row sees, by two edges.

use std::ops::Range;

/// An edge of a band: the key position at which the visible keys of a query row begin or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// The same key position for every row.
    Fixed(i64),
    /// Key position = row position + n.
    Diagonal(i64),
}

impl Edge {
    /// The edge's key position for the row at position `row`.
    #[inline]
    pub const fn at(self, row: i64) -> i64 {
        match self {
            Edge::Fixed(n) => n,
            Edge::Diagonal(n) => row.saturating_add(n),
        }
    }

    /// The edge for rows counted from `row` and keys counted from `key`.
    pub(crate) fn relative(self, row: i64, key: i64) -> Self {
        match self {
            Edge::Fixed(n) => Edge::Fixed(n.saturating_sub(key)),
            Edge::Diagonal(n) => Edge::Diagonal(n.saturating_add(row).saturating_sub(key)),
        }
    }

    /// The row at which the two edges meet, where one is fixed and the other is not.
    fn meets(self, other: Self) -> Option<i64> {
        match (self, other) {
            (Edge::Fixed(f), Edge::Diagonal(n)) | (Edge::Diagonal(n), Edge::Fixed(f)) => {
                Some(f.saturating_sub(n))
            }
            _ => None,
        }
    }
}

/// `7`, or `row+7` for a diagonal.
impl std::fmt::Display for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Edge::Fixed(n) => write!(f, "{n}"),
            Edge::Diagonal(n) => write!(f, "row{n:+}"),
        }
    }
}

/// Rows `q` see the keys `lo(row) .. hi(row)`; where `hi <= lo` a row sees nothing.
///
/// In a mask, positions are global; in a tile, rows count from the tile's first row and keys from the
/// first gathered key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Band {
    /// The rows that this band speaks of, half-open.
    pub q: Range<i64>,
    /// First visible key.
    pub lo: Edge,
    /// One past the last visible key.
    pub hi: Edge,
}

impl Band {
    /// The keys among `0..keys` that the row at position `row` sees.
    #[inline]
    pub fn visible(&self, row: i64, keys: i64) -> Range<i64> {
        let lo = self.lo.at(row).clamp(0, keys);
        lo..self.hi.at(row).clamp(lo, keys)
    }

    /// The same band on the rows that see a key, or nothing where no row does.
    ///
    /// Edges never go backwards from row to row, so the seeing rows are one interval.
    pub fn trimmed(&self) -> Option<Band> {
        let mut q = self.q.clone();
        match (self.lo, self.hi) {
            (Edge::Fixed(lo), Edge::Fixed(hi)) | (Edge::Diagonal(lo), Edge::Diagonal(hi)) => {
                if hi <= lo {
                    return None;
                }
            }
            // row + n > lo
            (Edge::Fixed(lo), Edge::Diagonal(n)) => {
                q.start = q.start.max(lo.saturating_sub(n).saturating_add(1));
            }
            // row + n < hi
            (Edge::Diagonal(n), Edge::Fixed(hi)) => q.end = q.end.min(hi.saturating_sub(n)),
        }
        (q.start < q.end).then_some(Band { q, ..*self })
    }

    /// The pairs that are in both bands, as disjoint bands in order of rows, each trimmed to the rows
    /// that see a key.
    ///
    /// Where a fixed and a diagonal edge cross, the rows are cut in two.
    pub fn intersect(&self, other: &Band) -> Vec<Band> {
        let q = self.q.start.max(other.q.start)..self.q.end.min(other.q.end);
        if q.start >= q.end {
            return Vec::new();
        }
        // A cut at the first or last row would leave a row of its own that either edge describes.
        let inner = |x: &i64| q.start < *x && *x < q.end - 1;
        let meeting = [self.lo.meets(other.lo), self.hi.meets(other.hi)];
        let mut cuts: Vec<i64> = meeting.into_iter().flatten().filter(inner).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.push(q.end);
        let mut start = q.start;
        let mut bands = Vec::with_capacity(cuts.len());
        for end in cuts {
            let rows = start..end;
            let lo = pick(self.lo, other.lo, &rows, false);
            let hi = pick(self.hi, other.hi, &rows, true);
            bands.extend(Band { q: rows, lo, hi }.trimmed());
            start = end;
        }
        bands
    }

    /// The (row, key) pairs that the band shows among the keys `0..keys`.
    pub fn pairs(&self, keys: i64) -> u128 {
        let all = Band { q: self.q.clone(), lo: Edge::Fixed(0), hi: Edge::Fixed(keys) };
        self.intersect(&all).iter().map(Band::area).sum()
    }

    /// The pairs of a band whose rows all see a key: the visible lengths are an arithmetic series.
    pub(crate) fn area(&self) -> u128 {
        let length = |row| (self.hi.at(row) as i128 - self.lo.at(row) as i128) as u128;
        let rows = (self.q.end - self.q.start) as u128;
        rows * (length(self.q.start) + length(self.q.end - 1)) / 2
    }
}

/// The edge that is the smaller (or the larger) one on all of `rows`, between which they do not cross.
fn pick(a: Edge, b: Edge, rows: &Range<i64>, smaller: bool) -> Edge {
    let ends = |edge: Edge| edge.at(rows.start) as i128 + edge.at(rows.end - 1) as i128;
    if (ends(a) <= ends(b)) == smaller { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersections_and_pairs_agree_with_counting() {
        let edges = |n| [Edge::Fixed(n), Edge::Diagonal(n)];
        let mut bands = Vec::new();
        for lo in (-5..8).step_by(4).flat_map(edges) {
            for hi in (-4..10).step_by(3).flat_map(edges) {
                bands.extend([0..9, 2..7, 4..4].map(|q| Band { q, lo, hi }));
            }
        }
        let sees =
            |band: &Band, t: i64, k: i64| band.q.contains(&t) && band.lo.at(t) <= k && k < band.hi.at(t);
        let mut seen = 0;
        for a in &bands {
            let count = (0..9).flat_map(|t| (0..8).map(move |k| (t, k)));
            let pairs = count.filter(|&(t, k)| sees(a, t, k)).count();
            assert_eq!(a.pairs(8), pairs as u128, "{a:?}");
            for b in &bands {
                let both = a.intersect(b);
                for t in -1..10 {
                    for k in -20..25 {
                        let times = both.iter().filter(|c| sees(c, t, k)).count();
                        let expected = usize::from(sees(a, t, k) && sees(b, t, k));
                        assert_eq!(times, expected, "{a:?} {b:?} {t} {k}");
                        seen += times;
                    }
                }
                for c in &both {
                    assert!(c.q.clone().all(|t| c.lo.at(t) < c.hi.at(t)), "{a:?} {b:?} {c:?}");
                }
            }
        }
        assert!(seen > 10_000, "only {seen} pairs");
    }

    #[test]
    fn a_causal_square_is_one_band() {
        let causal = Band { q: 0..8, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) };
        let all = Band { q: 0..8, lo: Edge::Fixed(0), hi: Edge::Fixed(8) };
        assert_eq!(causal.intersect(&all), [causal]);
    }

    #[test]
    fn far_edges_do_not_overflow() {
        let far = Band { q: 0..4, lo: Edge::Diagonal(i64::MIN), hi: Edge::Diagonal(i64::MAX) };
        assert_eq!(far.pairs(7), 28);
        let far = Band { q: 0..4, lo: Edge::Fixed(i64::MIN), hi: Edge::Fixed(i64::MAX) };
        assert_eq!(far.pairs(7), 28);
    }
}

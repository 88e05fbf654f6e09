//! Tiles, and the arithmetic of bands on blocks of rows and keys.

use std::ops::Range;

use longreach_plan::{Band, Edge};

use crate::error::Error;

/// One piece of attention: query rows against a gathered list of key rows.
///
/// The band speaks of gathered order: its row `t` is query row `q.start + t`, its key `g` is the g-th row
/// of the concatenation of `kv`. Rows outside `band.q` see nothing.
#[derive(Clone, Debug)]
pub struct Tile<'a> {
    /// Batch entries that the tile covers.
    pub batch: Range<usize>,
    /// Query rows.
    pub q: Range<usize>,
    /// Key/value rows, in gathered order; no row twice.
    pub kv: &'a [Range<usize>],
    /// Which gathered keys each row sees.
    pub band: &'a Band,
}

impl Tile<'_> {
    /// Refuses a tile that reaches beyond the views or lists a key row twice.
    pub(crate) fn check(
        &self,
        tile: usize,
        batches: usize,
        q_rows: usize,
        kv_rows: usize,
    ) -> Result<(), Error> {
        let within = |what, given: &Range<usize>, len| {
            if given.start <= given.end && given.end <= len {
                Ok(())
            } else {
                Err(Error::Bounds { tile, what, given: given.clone(), len })
            }
        };
        within("batches", &self.batch, batches)?;
        within("query rows", &self.q, q_rows)?;
        for range in self.kv {
            within("key rows", range, kv_rows)?;
        }
        let mut sorted: Vec<_> = self.kv.iter().filter(|range| !range.is_empty()).collect();
        sorted.sort_by_key(|range| range.start);
        match sorted.windows(2).find(|pair| pair[0].end > pair[1].start) {
            Some(pair) => Err(Error::Overlap { tile, first: pair[0].clone(), second: pair[1].clone() }),
            None => Ok(()),
        }
    }
}

/// The gathered order of a tile's key rows.
#[derive(Debug)]
pub(crate) struct Gather<'a> {
    kv: &'a [Range<usize>],
    /// Gathered index of each range's first row, and the total.
    starts: Vec<usize>,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(kv: &'a [Range<usize>]) -> Self {
        let mut starts = Vec::with_capacity(kv.len() + 1);
        let mut total = 0;
        starts.push(0);
        for range in kv {
            total += range.len();
            starts.push(total);
        }
        Self { kv, starts }
    }

    /// Number of gathered keys. They are distinct rows of one view, so this cannot overflow.
    pub(crate) fn keys(&self) -> usize {
        self.starts[self.kv.len()]
    }

    /// The row ranges that hold the gathered keys `keys`, in order, none empty.
    pub(crate) fn pieces(&self, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let first = self.starts.partition_point(|&start| start <= keys.start).saturating_sub(1);
        (first..self.kv.len())
            .take_while({
                let end = keys.end;
                move |&i| self.starts[i] < end
            })
            .filter_map(move |i| {
                let from = keys.start.max(self.starts[i]);
                let to = keys.end.min(self.starts[i + 1]);
                let shift = self.kv[i].start;
                (from < to).then(|| from - self.starts[i] + shift..to - self.starts[i] + shift)
            })
    }
}

/// The rows among `rows` that see at least one key of `keys`.
///
/// Edges never go backwards from row to row, so these rows are one interval.
pub(crate) fn seeing_rows(band: &Band, rows: Range<i64>, keys: Range<i64>) -> Range<i64> {
    let mut from = rows.start.max(band.q.start);
    let mut to = rows.end.min(band.q.end);
    let mut require = |holds: bool| {
        if !holds {
            to = from;
        }
    };
    require(!keys.is_empty());
    if let (Edge::Fixed(lo), Edge::Fixed(hi)) | (Edge::Diagonal(lo), Edge::Diagonal(hi)) = (band.lo, band.hi)
    {
        require(lo < hi);
    }
    if let Edge::Fixed(lo) = band.lo {
        require(lo < keys.end);
    }
    if let Edge::Fixed(hi) = band.hi {
        require(hi > keys.start);
    }
    // lo(t) < keys.end and hi(t) > keys.start, then lo(t) < hi(t) where one edge moves.
    if let Edge::Diagonal(lo) = band.lo {
        to = to.min(keys.end.saturating_sub(lo));
        if let Edge::Fixed(hi) = band.hi {
            to = to.min(hi.saturating_sub(lo));
        }
    }
    if let Edge::Diagonal(hi) = band.hi {
        from = from.max(keys.start.saturating_sub(hi).saturating_add(1));
        if let Edge::Fixed(lo) = band.lo {
            from = from.max(lo.saturating_sub(hi).saturating_add(1));
        }
    }
    from..to.max(from)
}

/// The keys among `keys` that some row of `rows` sees, where each of `rows` sees one (see
/// [`seeing_rows`]): one interval, because the next row's keys begin where this row's do or one later.
pub(crate) fn seen_keys(band: &Band, rows: Range<i64>, keys: Range<i64>) -> Range<i64> {
    band.lo.at(rows.start).max(keys.start)..band.hi.at(rows.end - 1).min(keys.end)
}

/// Whether each of `rows`, all inside `band.q`, sees all of `keys`.
pub(crate) fn sees_all(band: &Band, rows: Range<i64>, keys: Range<i64>) -> bool {
    band.lo.at(rows.end - 1) <= keys.start && band.hi.at(rows.start) >= keys.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_agree_with_counting() {
        let edges = |n| [Edge::Fixed(n), Edge::Diagonal(n)];
        let mut checked = 0;
        for lo in (-7..12).step_by(3).flat_map(edges) {
            for hi in (-6..14).step_by(2).flat_map(edges) {
                for q in [0..9, 2..7, 4..4] {
                    let band = Band { q: q.clone(), lo, hi };
                    for keys in [0..8, 3..6, 5..5, 7..8] {
                        let sees = |t: i64, k: i64| q.contains(&t) && lo.at(t) <= k && k < hi.at(t);
                        let rows: Vec<i64> = (1..8).filter(|&t| keys.clone().any(|k| sees(t, k))).collect();
                        let found = seeing_rows(&band, 1..8, keys.clone());
                        assert_eq!(found.clone().collect::<Vec<_>>(), rows, "{band:?} {keys:?}");
                        if found.is_empty() {
                            continue;
                        }
                        let seen: Vec<i64> =
                            keys.clone().filter(|&k| found.clone().any(|t| sees(t, k))).collect();
                        let span = seen_keys(&band, found.clone(), keys.clone());
                        assert_eq!(span.collect::<Vec<_>>(), seen, "{band:?} {keys:?}");
                        let all = keys.clone().all(|k| found.clone().all(|t| sees(t, k)));
                        assert_eq!(sees_all(&band, found, keys.clone()), all, "{band:?} {keys:?}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 300, "only {checked} of the combinations saw anything");
    }

    #[test]
    fn pieces_follow_the_gathered_order() {
        let kv = [7..9, 3..3, 0..2, 4..7];
        let gather = Gather::new(&kv);
        let all: Vec<usize> = kv.iter().cloned().flatten().collect();
        assert_eq!(gather.keys(), all.len());
        for from in 0..=all.len() {
            for to in from..=all.len() {
                let found: Vec<usize> = gather.pieces(from..to).flatten().collect();
                assert_eq!(found, all[from..to]);
            }
        }
    }
}

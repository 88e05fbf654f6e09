//! Whether bands are disjoint: a sweep over the rows.
//!
//! The bands that a row belongs to are kept in the order of their keys there. That order stays the same from row to row
//! as long as none of them overlap, so only bands that become neighbours, where one begins or ends, need to be compared
//! (M. Shamos and D. Hoey, Geometric intersection problems, 1976).

use crate::band::Band;
use crate::error::Error;

/// Fails where two of the numbered bands, each on rows that see a key, share a (query, key) pair.
pub(crate) fn check(bands: &[(usize, Band)]) -> Result<(), Error> {
    let mut begins: Vec<usize> = (0..bands.len()).collect();
    let mut ends = begins.clone();
    begins.sort_by_key(|&band| bands[band].1.q.start);
    ends.sort_by_key(|&band| bands[band].1.q.end);
    let mut ends = ends.into_iter().peekable();
    let mut open: Vec<usize> = Vec::new();
    let disjoint = |open: &[usize], place: usize| match (open.get(place), open.get(place + 1)) {
        (Some(&one), Some(&other)) => compare(&bands[one], &bands[other]),
        _ => Ok(()),
    };
    for band in begins {
        let row = bands[band].1.q.start;
        while let Some(ended) = ends.next_if(|&ended| bands[ended].1.q.end <= row) {
            // All that are open belong to the ended one's last row.
            let last = bands[ended].1.q.end - 1;
            let lo = bands[ended].1.lo.at(last);
            let place = open.partition_point(|&other| bands[other].1.lo.at(last) < lo);
            open.remove(place);
            if let Some(before) = place.checked_sub(1) {
                disjoint(&open, before)?;
            }
        }
        let lo = bands[band].1.lo.at(row);
        let place = open.partition_point(|&other| bands[other].1.lo.at(row) < lo);
        open.insert(place, band);
        disjoint(&open, place)?;
        if let Some(before) = place.checked_sub(1) {
            disjoint(&open, before)?;
        }
    }
    Ok(())
}

fn compare(one: &(usize, Band), other: &(usize, Band)) -> Result<(), Error> {
    let Some(both) = one.1.intersect(&other.1).into_iter().next() else {
        return Ok(());
    };
    let (first, second) = (one.0.min(other.0), one.0.max(other.0));
    let (query, key) = (both.q.start, both.lo.at(both.q.start));
    Err(Error::BandOverlap { first, second, query, key })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::band::Edge;

    fn edge(kind: u64, n: i64) -> Edge {
        if kind.is_multiple_of(2) { Edge::Fixed(n) } else { Edge::Diagonal(n) }
    }

    /// Numbers that look random and are always the same.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 7u64;
        move |below| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        }
    }

    #[test]
    fn overlaps_are_found_where_counting_finds_them() {
        const KEYS: i64 = 12;
        let mut next = numbers();
        let (mut overlapping, mut disjoint) = (0, 0);
        for _ in 0..4000 {
            let mut bands = Vec::new();
            for number in 0..2 + next(4) as usize {
                let from = next(10) as i64;
                let q = from..from + 1 + next(6) as i64;
                let (lo, hi) = (next(KEYS as u64) as i64 - 6, next(KEYS as u64) as i64);
                let band = Band { q: q.clone(), lo: edge(next(2), lo), hi: edge(next(2), hi) };
                let keys = Band { q, lo: Edge::Fixed(0), hi: Edge::Fixed(KEYS) };
                bands.extend(band.intersect(&keys).into_iter().map(|band| (number, band)));
            }
            // Pieces of one band are disjoint, as they come.
            let mut seen = std::collections::HashSet::new();
            let pairs = bands.iter().flat_map(|(_, band)| {
                band.q.clone().flat_map(|row| band.visible(row, KEYS).map(move |key| (row, key)))
            });
            let counted = pairs.into_iter().all(|pair| seen.insert(pair));
            let found = check(&bands);
            assert_eq!(found.is_ok(), counted, "{bands:?}");
            if let Err(Error::BandOverlap { first, second, query, key }) = found {
                let sees = |number| {
                    bands.iter().any(|(n, band)| {
                        *n == number && band.q.contains(&query) && band.visible(query, KEYS).contains(&key)
                    })
                };
                assert!(sees(first) && sees(second), "{first} {second} {query} {key}: {bands:?}");
                overlapping += 1;
            } else {
                disjoint += 1;
            }
        }
        assert!(overlapping > 500 && disjoint > 500, "{overlapping} {disjoint}");
    }

    #[test]
    fn many_bands_on_the_same_rows_are_told_apart() {
        const MANY: i64 = 20_000;
        let band = |i: i64| {
            let (lo, hi) = (Edge::Diagonal(2 * i), Edge::Diagonal(2 * i + 1));
            (i as usize, Band { q: 0..1000, lo, hi })
        };
        let mut bands: Vec<_> = (0..MANY).map(band).collect();
        assert_eq!(check(&bands), Ok(()));
        bands[777].1.hi = Edge::Diagonal(2 * 777 + 3);
        let found = check(&bands).unwrap_err();
        assert!(matches!(found, Error::BandOverlap { first: 777, second: 778, query: 0, .. }), "{found}");
    }
}

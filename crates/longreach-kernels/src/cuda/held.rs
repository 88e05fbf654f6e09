//! What rows of memory on the GPU hold, as the host knows it from what it has queued.

use std::ops::Range;

/// Nothing; one or two parts as cuDNN wrote them; a sum in float32.
const EMPTY: u8 = 0;
const SUM: u8 = 3;

/// What each row of `[batch, heads, rows]` holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    heads: usize,
    rows: usize,
    of: Vec<u8>,
}

impl Held {
    /// Of rows that hold whatever is in them, as sums.
    pub fn new([batch, heads, rows]: [usize; 3]) -> Self {
        Self { heads, rows, of: vec![SUM; batch * heads * rows] }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.of.fill(EMPTY);
    }

    /// Makes room for a part of these rows: which half of their memory it takes, or nothing where it must be added up.
    pub fn take(&mut self, batch: &Range<usize>, heads: &Range<usize>, rows: &Range<usize>) -> Option<usize> {
        let (all_heads, all_rows) = (self.heads, self.rows);
        let first = |batch: usize, head: usize| (batch * all_heads + head) * all_rows;
        let of_head =
            |batch: usize, head: usize| first(batch, head) + rows.start..first(batch, head) + rows.end;
        let each: Vec<_> = batch.clone().flat_map(|b| heads.clone().map(move |h| of_head(b, h))).collect();
        let held = each.first().map_or(SUM, |first| self.of[first.start]);
        let alike = each.iter().all(|rows| self.of[rows.clone()].iter().all(|&of| of == held));
        let half = (held < 2 && alike).then_some(held);
        for rows in each {
            self.of[rows].fill(half.map_or(SUM, |half| half + 1));
        }
        half.map(usize::from)
    }
}

impl Held {
    /// `rows` of a batch entry and head in runs of rows that hold nothing (true) and rows that hold a sum. All heads of one
    /// call have the same: calls that are split by heads come one after another.
    pub fn runs(&self, batch: usize, head: usize, rows: &Range<usize>) -> Vec<(bool, Range<usize>)> {
        let first = (batch * self.heads + head) * self.rows;
        let of = &self.of[first + rows.start..first + rows.end];
        let mut at = rows.start;
        let runs = of.chunk_by(|a, b| (*a == EMPTY) == (*b == EMPTY)).map(|run| {
            let start = at;
            at += run.len();
            (run[0] == EMPTY, start..at)
        });
        runs.collect()
    }

    /// Notes that rows hold a sum.
    pub fn add(&mut self, batch: usize, heads: &Range<usize>, rows: &Range<usize>) {
        for head in heads.clone() {
            let first = (batch * self.heads + head) * self.rows;
            self.of[first + rows.start..first + rows.end].fill(SUM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_of_a_row_stand_side_by_side_and_a_third_is_added() {
        let mut held = Held::new([2, 4, 10]);
        assert_eq!(held.take(&(0..2), &(0..4), &(0..10)), None, "nothing is known of it");
        held.clear();
        assert_eq!(held.take(&(0..2), &(0..4), &(0..6)), Some(0));
        assert_eq!(held.take(&(0..2), &(0..2), &(4..6)), Some(1));
        assert_eq!(held.take(&(0..2), &(0..4), &(4..6)), None, "two heads hold two parts, and two hold one");
        assert_eq!(held.take(&(1..2), &(0..4), &(0..4)), Some(1));
        assert_eq!(held.take(&(1..2), &(0..4), &(0..4)), None);
        assert_eq!(held.take(&(0..1), &(0..4), &(6..10)), Some(0));
        assert_eq!(held.of.iter().filter(|&&of| of == EMPTY).count(), 4 * 4);
    }

    #[test]
    fn runs_tell_rows_that_hold_nothing() {
        let mut held = Held::new([2, 2, 8]);
        assert_eq!(held.runs(0, 0, &(2..7)), [(false, 2..7)]);
        held.clear();
        held.add(1, &(0..2), &(3..5));
        assert_eq!(held.runs(1, 1, &(1..8)), [(true, 1..3), (false, 3..5), (true, 5..8)]);
        assert_eq!(held.runs(0, 1, &(1..8)), [(true, 1..8)]);
        assert_eq!(held.runs(0, 1, &(4..4)), []);
    }
}

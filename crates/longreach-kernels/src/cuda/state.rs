//! The state that the forward carries.

use super::cudnn::Element;
use super::memory::Memory;
use crate::error::Error;
use std::ops::Range;

/// What a row holds: nothing, one or two parts as cuDNN wrote them, or a sum in float32.
const EMPTY: u8 = 0;
const SUM: u8 = 3;

/// Attention of some query rows over the keys seen so far, on a GPU: what [`crate::State`] is on a CPU.
///
/// A row's first two parts stay as they are, side by side where its float32 sum would be, and are added up when a third
/// comes or at the end: a row costs no pass over memory but the last. Which rows hold what is known to the host.
#[derive(Debug)]
pub struct State {
    pub(super) acc: Memory,
    pub(super) max: Memory,
    pub(super) sum: Memory,
    /// Of an output, `[batch, rows, heads, dim]`.
    pub(super) shape: [usize; 4],
    /// Type of the parts.
    pub(super) element: Option<Element>,
    pub(super) held: Held,
}

impl State {
    /// For an output of `shape` `[batch, query rows, query heads, dim of v]`: `acc`, float32 of as many elements, and
    /// `max` and `sum`, float32 `[batch, query heads, query rows]`. It needs a [`reset`](super::reset()) first.
    pub fn new(acc: Memory, max: Memory, sum: Memory, shape: [usize; 4]) -> Result<Self, Error> {
        let [batch, rows, heads, dim] = shape;
        acc.check_f32("state.acc", &[batch, heads, rows, dim])?;
        max.check_f32("state.max", &[batch, heads, rows])?;
        sum.check_f32("state.sum", &[batch, heads, rows])?;
        let held = Held { heads, rows, of: vec![SUM; batch * heads * rows] };
        Ok(Self { acc, max, sum, shape, element: None, held })
    }

    /// Addresses of acc, max and sum.
    pub(super) fn addresses(&self) -> [u64; 3] {
        [self.acc, self.max, self.sum].map(Memory::address)
    }

    /// The same of a row, of which there are [batch, heads, rows].
    pub(super) fn at(&self, batch: usize, head: usize, row: usize) -> [u64; 3] {
        let [_, rows, heads, dim] = self.shape;
        let first = ((batch * heads + head) * rows + row) as u64 * 4;
        let [acc, max, sum] = self.addresses();
        [acc + first * dim as u64, max + first, sum + first]
    }
}

/// What each row of `[batch, heads, rows]` holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    heads: usize,
    rows: usize,
    of: Vec<u8>,
}

impl Held {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_of_a_row_stand_side_by_side_and_a_third_is_added() {
        let mut held = Held { heads: 4, rows: 10, of: vec![SUM; 80] };
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
}

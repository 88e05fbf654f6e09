//! The state that the forward carries.

use super::cudnn::Element;
use super::held::Held;
use super::memory::Memory;
use crate::error::Error;

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
        Ok(Self { acc, max, sum, shape, element: None, held: Held::new([batch, heads, rows]) })
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

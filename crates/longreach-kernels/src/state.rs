//! The unnormalised result that the forward carries.

use crate::error::Error;

/// Unnormalised attention of some query rows: for each row the sum of weighted values, the largest score
/// and the sum of weights, with weights relative to that largest score.
///
/// The identity, which [`State::reset`] writes, is acc = 0, max = -inf, sum = 0.
#[derive(Debug)]
pub struct State<'a> {
    /// Sum of weight x value, `[batch, query heads, query rows, dim of v]`.
    pub acc: &'a mut [f32],
    /// Largest visible `scale * q.k`, `[batch, query heads, query rows]`.
    pub max: &'a mut [f32],
    /// Sum of weights, `[batch, query heads, query rows]`.
    pub sum: &'a mut [f32],
}

impl State<'_> {
    /// Makes every row the identity: a row that has seen no key.
    pub fn reset(&mut self) {
        self.acc.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
    }

    /// Refuses a state that is not of shape `[batch, heads, rows, dim]`.
    pub(crate) fn check(&self, [batch, rows, heads, dim]: [usize; 4]) -> Result<(), Error> {
        expect_len("state.acc", self.acc.len(), &[batch, heads, rows, dim])?;
        expect_len("state.max", self.max.len(), &[batch, heads, rows])?;
        expect_len("state.sum", self.sum.len(), &[batch, heads, rows])
    }
}

/// Refuses a slice that does not have exactly the elements of `shape`.
pub(crate) fn expect_len(what: &'static str, given: usize, shape: &[usize]) -> Result<(), Error> {
    let needed = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    match needed {
        None => Err(Error::Overflow { what, shape: shape.to_vec() }),
        Some(needed) if needed != given => Err(Error::Length { what, given, needed, shape: shape.to_vec() }),
        Some(_) => Ok(()),
    }
}

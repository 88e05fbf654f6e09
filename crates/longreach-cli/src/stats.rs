//! What a run measured, in numbers that the table, the JSON object and the trace are made from.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// One pass (forward or backward) of one PE, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// From the first PE's start to the last PE's end.
    pub seconds: f64,
    /// Of the compute stream, at work.
    pub compute_seconds: f64,
    /// Of the communication stream, at work.
    pub comm_seconds: f64,
    /// Compute stream idle for an arrival or a late peer, after the PE's own start.
    pub exposed_seconds: f64,
    /// K and V of other PEs.
    pub bytes_fetched: u64,
    /// What a ring would move.
    pub bytes_ring: u64,
    /// Contributions to dK and dV that went to their owner (backward).
    pub bytes_returned: u64,
    /// Floating-point operations of the visible pairs.
    pub flops: f64,
}

impl Pass {
    /// Operations over seconds; 0 where nothing was done.
    pub fn gflops(&self) -> f64 {
        if self.flops > 0.0 && self.seconds > 0.0 { self.flops / self.seconds * 1e-9 } else { 0.0 }
    }

    /// The passes of all PEs as one: times are maxima (`seconds` is given), bytes and operations sums.
    pub fn total(seconds: f64, passes: &[Self]) -> Self {
        let max = |of: fn(&Self) -> f64| passes.iter().map(of).fold(0.0, f64::max);
        let sum = |of: fn(&Self) -> u64| passes.iter().map(of).sum();
        Self {
            seconds,
            compute_seconds: max(|pass| pass.compute_seconds),
            comm_seconds: max(|pass| pass.comm_seconds),
            exposed_seconds: max(|pass| pass.exposed_seconds),
            bytes_fetched: sum(|pass| pass.bytes_fetched),
            bytes_ring: sum(|pass| pass.bytes_ring),
            bytes_returned: sum(|pass| pass.bytes_returned),
            flops: passes.iter().map(|pass| pass.flops).sum(),
        }
    }

    /// The same pass repeated: times are medians, the rest is the same each time.
    pub fn median(passes: &[Self]) -> Self {
        let times = |of: fn(&Self) -> f64| median(passes.iter().map(of).collect());
        Self {
            seconds: times(|pass| pass.seconds),
            compute_seconds: times(|pass| pass.compute_seconds),
            comm_seconds: times(|pass| pass.comm_seconds),
            exposed_seconds: times(|pass| pass.exposed_seconds),
            ..passes.first().copied().unwrap_or_default()
        }
    }
}

/// The middle value, or the mean of the two middle values; 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// What one PE held and did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerPe {
    /// Query tokens held, over all batch rows.
    pub tokens: u64,
    /// K/V rows fetched a forward pass, over all batch rows.
    pub rows_fetched: u64,
    /// Its forward pass.
    pub forward: Pass,
    /// Its backward pass.
    pub backward: Option<Pass>,
}

/// A stretch of work on a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Whose.
    pub pe: usize,
    /// The stream's name.
    pub stream: String,
    /// What was done: get, wait, publish, tile, merge.
    pub name: String,
    /// The pass that it belongs to: forward, backward.
    pub pass: Cow<'static, str>,
    /// Seconds since the start of the run.
    pub start: f64,
    /// Seconds since the start of the run.
    pub end: f64,
    /// Bytes, operations, stage and the like.
    pub args: Vec<(Cow<'static, str>, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_total_has_the_longest_times_and_all_bytes() {
        let pass = |seconds: f64, bytes: u64| Pass {
            seconds,
            compute_seconds: seconds,
            exposed_seconds: 1.0 - seconds,
            bytes_fetched: bytes,
            flops: 1e9,
            ..Pass::default()
        };
        let total = Pass::total(2.0, &[pass(0.25, 10), pass(0.75, 20)]);
        assert_eq!((total.seconds, total.compute_seconds, total.exposed_seconds), (2.0, 0.75, 0.75));
        assert_eq!((total.bytes_fetched, total.gflops()), (30, 1.0));
        assert_eq!(Pass::default().gflops(), 0.0);
        let median = Pass::median(&[pass(0.2, 7), pass(0.9, 7), pass(0.4, 7)]);
        assert_eq!((median.seconds, median.bytes_fetched), (0.4, 7));
    }
}

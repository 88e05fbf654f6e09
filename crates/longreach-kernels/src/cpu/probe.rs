//! How fast the `gemm` crate is at the kernels' own shapes: what their rates are compared with.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::gemm::{Mat, gemm};
use super::memory::Scratch;
use super::{COLUMNS, KEYS};

/// Rates of the matrix products alone, on one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmRate {
    /// The two products of the forward, in GFLOP/s.
    pub forward: f64,
    /// The five products of the backward, in GFLOP/s.
    pub backward: f64,
}

/// Runs the products of the forward and of the backward at the kernels' block shape for at least `time`
/// each, on the calling thread, with operands laid out as the kernels lay them out.
pub fn gemm_rate(dim_qk: usize, dim_v: usize, time: Duration) -> GemmRate {
    let (dim_qk, dim_v) = (dim_qk.max(1), dim_v.max(1));
    let dim = dim_qk.max(dim_v);
    let lens = [COLUMNS * dim, COLUMNS * dim, KEYS * dim, KEYS * dim, KEYS * COLUMNS, KEYS * COLUMNS];
    let mut scratch = Scratch::new(lens);
    let [rows, rows_out, keys, keys_out, scores, weights] = scratch.parts(lens);
    rows.fill(0.5);
    keys.fill(0.25);
    weights.fill(0.125);
    let by_row = |data, dim| Mat { data, rs: 1, cs: dim };
    let transposed = |data| Mat { data, rs: 1, cs: COLUMNS };
    let weights_t = |data| Mat { data, rs: COLUMNS, cs: 1 };

    let rate = |flops: usize, products: &mut dyn FnMut()| {
        products();
        let start = Instant::now();
        let mut runs = 0;
        while runs == 0 || start.elapsed() < time {
            products();
            runs += 1;
        }
        (runs * flops) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let pairs = COLUMNS * KEYS;
    let forward = rate(2 * pairs * (dim_qk + dim_v), &mut || {
        let sizes = (COLUMNS, KEYS, dim_qk);
        gemm(sizes, scores, COLUMNS, false, transposed(rows), by_row(keys, dim_qk), 1.0);
        let sizes = (dim_v, COLUMNS, KEYS);
        gemm(sizes, rows_out, dim_v, true, by_row(keys, dim_v), weights_t(weights), 1.0);
        black_box((&mut *scores, &mut *rows_out));
    });
    let backward = rate(pairs * (6 * dim_qk + 4 * dim_v), &mut || {
        let sizes = (COLUMNS, KEYS, dim_qk);
        gemm(sizes, scores, COLUMNS, false, transposed(rows), by_row(keys, dim_qk), 1.0);
        let sizes = (COLUMNS, KEYS, dim_v);
        gemm(sizes, scores, COLUMNS, false, transposed(rows), by_row(keys, dim_v), 1.0);
        let sizes = (dim_v, KEYS, COLUMNS);
        gemm(sizes, keys_out, dim_v, true, by_row(rows, dim_v), transposed(weights), 1.0);
        let sizes = (dim_qk, KEYS, COLUMNS);
        gemm(sizes, keys_out, dim_qk, true, by_row(rows, dim_qk), transposed(weights), 1.0);
        let sizes = (dim_qk, COLUMNS, KEYS);
        gemm(sizes, rows_out, dim_qk, false, by_row(keys, dim_qk), weights_t(weights), 1.0);
        black_box((&mut *scores, &mut *rows_out, &mut *keys_out));
    });
    GemmRate { forward, backward }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_finite_and_positive() {
        for (dim_qk, dim_v) in [(64, 64), (192, 128), (0, 1)] {
            let rate = gemm_rate(dim_qk, dim_v, Duration::from_millis(1));
            for rate in [rate.forward, rate.backward] {
                assert!(rate.is_finite() && rate > 0.0);
            }
        }
    }
}

//! Float64 loops written so that the compiler turns them into vector code: fixed lanes, no early exit.

const LANES: usize = 8;

/// `sum a_i b_i` and `sum |a_i b_i|`.
pub(super) fn dot(a: &[f64], b: &[f64]) -> (f64, f64) {
    let mut sum = [0.0; LANES];
    let mut bound = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    for (x, y) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            let product = x[lane] * y[lane];
            sum[lane] += product;
            bound[lane] += product.abs();
        }
    }
    for (lane, (x, y)) in rest.enumerate() {
        sum[lane] += x * y;
        bound[lane] += (x * y).abs();
    }
    (sum.iter().sum(), bound.iter().sum())
}

/// `values += weight x`, `bounds += weight_bound |x|`.
pub(super) fn add(values: &mut [f64], bounds: &mut [f64], (weight, weight_bound): (f64, f64), x: &[f64]) {
    for ((value, bound), x) in values.iter_mut().zip(bounds).zip(x) {
        *value += weight * x;
        *bound += weight_bound * x.abs();
    }
}

/// Four [`add`]s in one pass over `values` and `bounds`, which would otherwise be loaded and stored each time.
pub(super) fn add4(values: &mut [f64], bounds: &mut [f64], w: [(f64, f64); 4], x: [&[f64]; 4]) {
    let n = values.len();
    let (bounds, [x0, x1, x2, x3]) = (&mut bounds[..n], x.map(|x| &x[..n]));
    for i in 0..n {
        values[i] += (w[0].0 * x0[i] + w[1].0 * x1[i]) + (w[2].0 * x2[i] + w[3].0 * x3[i]);
        bounds[i] +=
            (w[0].1 * x0[i].abs() + w[1].1 * x1[i].abs()) + (w[2].1 * x2[i].abs() + w[3].1 * x3[i].abs());
    }
}

/// Adds the rows `keys` of the matrix `x` (`dim` wide) with their weights.
pub(super) fn add_rows(
    values: &mut [f64],
    bounds: &mut [f64],
    weights: &[(f64, f64)],
    x: &[f64],
    keys: std::ops::Range<usize>,
) {
    let dim = values.len();
    if dim == 0 {
        return;
    }
    let row = |j: usize| &x[j * dim..(j + 1) * dim];
    let mut j = keys.start;
    for four in weights.chunks_exact(4) {
        add4(
            values,
            bounds,
            [four[0], four[1], four[2], four[3]],
            [row(j), row(j + 1), row(j + 2), row(j + 3)],
        );
        j += 4;
    }
    for &weight in weights.chunks_exact(4).remainder() {
        add(values, bounds, weight, row(j));
        j += 1;
    }
}

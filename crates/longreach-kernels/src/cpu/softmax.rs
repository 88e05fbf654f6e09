//! The elementwise work between the products, on transposed blocks of scores: a row for each key, a
//! column for each query row.

use pulp::{Simd, WithSimd};

use super::exp::Exp;

/// Rows whose weights are summed before they join the total, so that float32 sums stay short.
const SUM_ROWS: usize = 32;

/// Which rows of the block each column sees: `len[c]` rows from `lo[c]` on.
#[derive(Clone, Copy)]
pub(crate) struct Mask<'a> {
    pub lo: &'a [u32],
    pub len: &'a [u32],
}

/// Turns scores into weights relative to each column's largest score so far, in place.
///
/// Updates `max` and `sum`; `rescale` gets the factor that carries older sums over to the new maximum.
pub(crate) struct Forward<'a> {
    /// `[keys][columns]`.
    pub scores: &'a mut [f32],
    pub keys: usize,
    pub columns: usize,
    pub mask: Option<Mask<'a>>,
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
    pub rescale: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let mut column = 0;
        while column + 4 * S::F32_LANES <= self.columns {
            self.panel::<4, S>(simd, column);
            column += 4 * S::F32_LANES;
        }
        while column + S::F32_LANES <= self.columns {
            self.panel::<1, S>(simd, column);
            column += S::F32_LANES;
        }
        debug_assert_eq!(column, self.columns, "columns come in multiples of the widest vector");
    }
}

impl Forward<'_> {
    #[inline(always)]
    fn panel<const W: usize, S: Simd>(&mut self, simd: S, column: usize) {
        match self.mask {
            Some(mask) => self.panel_masked::<W, S, true>(simd, column, mask),
            None => self.panel_masked::<W, S, false>(simd, column, Mask { lo: &[], len: &[] }),
        }
    }

    #[inline(always)]
    fn panel_masked<const W: usize, S: Simd, const MASKED: bool>(
        &mut self,
        simd: S,
        column: usize,
        mask: Mask,
    ) {
        let end = column + W * S::F32_LANES;
        let (lo, len) = window::<W, S, MASKED>(simd, mask, column..end);
        let hidden = simd.splat_f32s(f32::NEG_INFINITY);
        let zero = simd.splat_f32s(0.0);

        let mut largest = [hidden; W];
        for (key, row) in self.scores.chunks_exact(self.columns).take(self.keys).enumerate() {
            let row = vectors::<W, S>(&row[column..end]);
            for w in 0..W {
                let mut score = row[w];
                if MASKED {
                    score = simd.select_f32s(sees(simd, key, lo[w], len[w]), score, hidden);
                }
                largest[w] = simd.max_f32s(largest[w], score);
            }
        }

        let exp = Exp::new(simd);
        let max = vectors_mut::<W, S>(&mut self.max[column..end]);
        let rescale = vectors_mut::<W, S>(&mut self.rescale[column..end]);
        let mut base = [zero; W];
        for w in 0..W {
            let new = simd.max_f32s(max[w], largest[w]);
            // A column that has seen nothing has no maximum to subtract; all its weights are 0 anyway.
            base[w] = simd.select_f32s(simd.equal_f32s(new, hidden), zero, new);
            rescale[w] = exp.of(simd, simd.sub_f32s(max[w], base[w]));
            max[w] = new;
        }

        let mut total = [zero; W];
        let mut part = [zero; W];
        for (key, row) in self.scores.chunks_exact_mut(self.columns).take(self.keys).enumerate() {
            let row = vectors_mut::<W, S>(&mut row[column..end]);
            for w in 0..W {
                let mut weight = exp.of(simd, simd.sub_f32s(row[w], base[w]));
                if MASKED {
                    weight = simd.select_f32s(sees(simd, key, lo[w], len[w]), weight, zero);
                }
                row[w] = weight;
                part[w] = simd.add_f32s(part[w], weight);
            }
            if key % SUM_ROWS == SUM_ROWS - 1 {
                for w in 0..W {
                    total[w] = simd.add_f32s(total[w], part[w]);
                    part[w] = zero;
                }
            }
        }
        let sum = vectors_mut::<W, S>(&mut self.sum[column..end]);
        for w in 0..W {
            let block = simd.add_f32s(total[w], part[w]);
            sum[w] = simd.add_f32s(simd.mul_f32s(sum[w], rescale[w]), block);
        }
    }
}

/// Turns scores into weights and dP into dS, in place: `P = e^(S - lse)`, `dS = P (dP - delta)`.
///
/// A column that sees nothing has lse = +inf and delta = 0 here: its weights are exactly 0.
pub(crate) struct Backward<'a> {
    /// Scores, then weights, `[keys][columns]`.
    pub p: &'a mut [f32],
    /// dP, then dS, `[keys][columns]`.
    pub ds: &'a mut [f32],
    pub keys: usize,
    pub columns: usize,
    pub mask: Option<Mask<'a>>,
    pub lse: &'a [f32],
    pub delta: &'a [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let mut column = 0;
        while column + 4 * S::F32_LANES <= self.columns {
            self.panel::<4, S>(simd, column);
            column += 4 * S::F32_LANES;
        }
        while column + S::F32_LANES <= self.columns {
            self.panel::<1, S>(simd, column);
            column += S::F32_LANES;
        }
        debug_assert_eq!(column, self.columns, "columns come in multiples of the widest vector");
    }
}

impl Backward<'_> {
    #[inline(always)]
    fn panel<const W: usize, S: Simd>(&mut self, simd: S, column: usize) {
        match self.mask {
            Some(mask) => self.panel_masked::<W, S, true>(simd, column, mask),
            None => self.panel_masked::<W, S, false>(simd, column, Mask { lo: &[], len: &[] }),
        }
    }

    #[inline(always)]
    fn panel_masked<const W: usize, S: Simd, const MASKED: bool>(
        &mut self,
        simd: S,
        column: usize,
        mask: Mask,
    ) {
        let end = column + W * S::F32_LANES;
        let (lo, len) = window::<W, S, MASKED>(simd, mask, column..end);
        let zero = simd.splat_f32s(0.0);
        let exp = Exp::new(simd);
        let lse = *vectors::<W, S>(&self.lse[column..end]);
        let delta = *vectors::<W, S>(&self.delta[column..end]);
        let p = self.p.chunks_exact_mut(self.columns);
        let ds = self.ds.chunks_exact_mut(self.columns);
        for (key, (p, ds)) in p.zip(ds).take(self.keys).enumerate() {
            let p = vectors_mut::<W, S>(&mut p[column..end]);
            let ds = vectors_mut::<W, S>(&mut ds[column..end]);
            for w in 0..W {
                let mut weight = exp.of(simd, simd.sub_f32s(p[w], lse[w]));
                let mut grad = simd.mul_f32s(weight, simd.sub_f32s(ds[w], delta[w]));
                if MASKED {
                    let seen = sees(simd, key, lo[w], len[w]);
                    weight = simd.select_f32s(seen, weight, zero);
                    grad = simd.select_f32s(seen, grad, zero);
                }
                p[w] = weight;
                ds[w] = grad;
            }
        }
    }
}

/// The mask of a panel in registers; unused zeros without one.
#[inline(always)]
fn window<const W: usize, S: Simd, const MASKED: bool>(
    simd: S,
    mask: Mask,
    columns: std::ops::Range<usize>,
) -> ([S::u32s; W], [S::u32s; W]) {
    let mut lo = [simd.splat_u32s(0); W];
    let mut len = lo;
    if MASKED {
        lo.copy_from_slice(S::as_simd_u32s(&mask.lo[columns.clone()]).0);
        len.copy_from_slice(S::as_simd_u32s(&mask.len[columns]).0);
    }
    (lo, len)
}

/// Whether `lo <= key < lo + len`, by one comparison: below `lo` the difference wraps around.
#[inline(always)]
fn sees<S: Simd>(simd: S, key: usize, lo: S::u32s, len: S::u32s) -> S::m32s {
    simd.less_than_u32s(simd.sub_u32s(simd.splat_u32s(key as u32), lo), len)
}

#[inline(always)]
fn vectors<const W: usize, S: Simd>(floats: &[f32]) -> &[S::f32s; W] {
    S::as_simd_f32s(floats).0.try_into().expect("a panel is W vectors wide")
}

#[inline(always)]
fn vectors_mut<const W: usize, S: Simd>(floats: &mut [f32]) -> &mut [S::f32s; W] {
    S::as_mut_simd_f32s(floats).0.try_into().expect("a panel is W vectors wide")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, Scalar};

    const KEYS: usize = 70;
    const COLUMNS: usize = 112; // A wide panel, and some narrow ones at every width.

    fn values(seed: u32, n: usize) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 21) as f32 - 4.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Column `c` sees the rows `c / 2 .. c / 2 + c % 40`.
    fn window() -> [Vec<u32>; 2] {
        let columns = 0..COLUMNS as u32;
        let lo: Vec<u32> = columns.clone().map(|c| c / 2).collect();
        [lo, columns.map(|c| (c % 40).min(KEYS as u32 - c / 2)).collect()]
    }

    #[test]
    fn portable_and_vector_paths_agree_in_every_bit() {
        let [lo, len] = window();
        for mask in [None, Some(Mask { lo: &lo, len: &len })] {
            let run = |vector: bool| {
                let mut scores = values(1, KEYS * COLUMNS);
                let (mut max, mut sum) = (values(2, COLUMNS), vec![1.0; COLUMNS]);
                max[5] = f32::NEG_INFINITY;
                let mut rescale = vec![f32::NAN; COLUMNS];
                let forward = Forward {
                    scores: &mut scores,
                    keys: KEYS,
                    columns: COLUMNS,
                    mask,
                    max: &mut max,
                    sum: &mut sum,
                    rescale: &mut rescale,
                };
                if vector {
                    Arch::new().dispatch(forward);
                } else {
                    forward.with_simd(Scalar::new());
                }
                let (mut p, mut ds) = (values(3, KEYS * COLUMNS), values(4, KEYS * COLUMNS));
                let backward = Backward {
                    p: &mut p,
                    ds: &mut ds,
                    keys: KEYS,
                    columns: COLUMNS,
                    mask,
                    lse: &max,
                    delta: &sum,
                };
                if vector {
                    Arch::new().dispatch(backward);
                } else {
                    backward.with_simd(Scalar::new());
                }
                [scores, max, sum, rescale, p, ds].map(|x| x.iter().map(|x| x.to_bits()).collect())
            };
            let (wide, narrow): ([Vec<u32>; 6], _) = (run(true), run(false));
            assert!(wide == narrow);
        }
    }

    #[test]
    fn hidden_scores_weigh_nothing_whatever_they_are() {
        let [lo, len] = window();
        let mut scores = values(1, KEYS * COLUMNS);
        let seen = |key: usize, c: usize| (lo[c] as usize..(lo[c] + len[c]) as usize).contains(&key);
        for (at, score) in scores.iter_mut().enumerate() {
            if !seen(at / COLUMNS, at % COLUMNS) {
                *score = [f32::NAN, f32::INFINITY, 1e30][at % 3];
            }
        }
        let (mut max, mut sum) = (vec![f32::NEG_INFINITY; COLUMNS], vec![0.0; COLUMNS]);
        let mut rescale = vec![f32::NAN; COLUMNS];
        Arch::new().dispatch(Forward {
            scores: &mut scores,
            keys: KEYS,
            columns: COLUMNS,
            mask: Some(Mask { lo: &lo, len: &len }),
            max: &mut max,
            sum: &mut sum,
            rescale: &mut rescale,
        });
        for c in 0..COLUMNS {
            let column: Vec<f32> = (0..KEYS).map(|key| scores[key * COLUMNS + c]).collect();
            for (key, &weight) in column.iter().enumerate() {
                assert!(if seen(key, c) { weight > 0.0 } else { weight == 0.0 });
            }
            assert_eq!(rescale[c], 0.0);
            assert_eq!(max[c] == f32::NEG_INFINITY, len[c] == 0);
            let total: f64 = column.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum[c]) - total).abs() <= 1e-6 * total);
        }
    }
}

//! The exponential of a vector, written once for every vector width.

use pulp::Simd;

/// Below this, `e^x` is no longer a normal float32 and the result is 0.
const FLUSH: f32 = -87.3;

/// Constants of [`exp`], kept in registers over a loop.
#[derive(Clone, Copy)]
pub(crate) struct Exp<S: Simd> {
    flush: S::f32s,
    log2_e: S::f32s,
    /// 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits.
    round: S::f32s,
    ln2_high: S::f32s,
    ln2_low: S::f32s,
    terms: [S::f32s; 6],
    one: S::f32s,
    zero: S::f32s,
    mantissa_bits: S::u32s,
}

impl<S: Simd> Exp<S> {
    #[inline(always)]
    pub(crate) fn new(simd: S) -> Self {
        let f = |x| simd.splat_f32s(x);
        Self {
            flush: f(FLUSH),
            log2_e: f(std::f32::consts::LOG2_E),
            round: f(12_582_912.0),
            ln2_high: f(-355.0 / 512.0),
            ln2_low: f(2.121_944_4e-4),
            // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, after Cephes' expf.
            terms: [
                f(1.987_569_1e-4),
                f(1.398_199_9e-3),
                f(8.333_452e-3),
                f(4.166_579_6e-2),
                f(1.666_666_5e-1),
                f(0.5),
            ],
            one: f(1.0),
            zero: f(0.0),
            mantissa_bits: simd.splat_u32s(23),
        }
    }

    /// `e^x` for `x <= 88`: within 2 units in the last place, exactly 1 at 0, exactly 0 below -87.3 and
    /// at -inf, NaN at NaN.
    #[inline(always)]
    pub(crate) fn of(&self, simd: S, x: S::f32s) -> S::f32s {
        let shifted = simd.mul_add_f32s(x, self.log2_e, self.round);
        let n = simd.sub_f32s(shifted, self.round);
        let r = simd.mul_add_f32s(n, self.ln2_high, x);
        let r = simd.mul_add_f32s(n, self.ln2_low, r);
        let mut p = self.terms[0];
        for term in &self.terms[1..] {
            p = simd.mul_add_f32s(p, r, *term);
        }
        let p = simd.add_f32s(simd.mul_add_f32s(p, simd.mul_f32s(r, r), r), self.one);
        // The shift drops the bits of `round` and leaves n in the exponent's place.
        let n = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), self.mantissa_bits);
        let power = simd.add_u32s(n, simd.transmute_u32s_f32s(self.one));
        let y = simd.mul_f32s(p, simd.transmute_f32s_u32s(power));
        simd.select_f32s(simd.less_than_f32s(x, self.flush), self.zero, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, Scalar, WithSimd};

    struct Each<'a>(&'a mut [f32]);
    impl WithSimd for Each<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let exp = Exp::new(simd);
            let (vectors, tail) = S::as_mut_simd_f32s(self.0);
            assert!(tail.is_empty());
            for x in vectors {
                *x = exp.of(simd, *x);
            }
        }
    }

    #[test]
    fn within_two_ulp_and_the_same_bits_at_every_width() {
        let xs: Vec<f32> = (0..1 << 20).map(|i| -87.3 * (i as f32 / (1 << 20) as f32)).collect();
        let mut wide = xs.clone();
        Arch::new().dispatch(Each(&mut wide));
        let mut narrow = xs.clone();
        Each(&mut narrow).with_simd(Scalar::new());
        let mut worst = 0.0f64;
        for ((x, wide), narrow) in xs.iter().zip(&wide).zip(&narrow) {
            assert_eq!(wide.to_bits(), narrow.to_bits(), "exp({x})");
            let right = f64::from(*x).exp();
            worst = worst.max((f64::from(*wide) - right).abs() / right / f64::from(f32::EPSILON));
        }
        assert!(worst <= 1.0, "relative error {worst} of 2^-23");
    }

    #[test]
    fn exact_at_the_ends() {
        let mut xs = [0.0f32; 16];
        xs[..6].copy_from_slice(&[0.0, -0.0, f32::NEG_INFINITY, -1e30, -88.0, f32::NAN]);
        for run in [(|xs: &mut [f32]| Arch::new().dispatch(Each(xs))) as fn(&mut [f32]), |xs| {
            Each(xs).with_simd(Scalar::new())
        }] {
            let mut ys = xs;
            run(&mut ys);
            assert_eq!(ys[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
            assert!(ys[5].is_nan());
        }
    }
}

//! The output's gradient: of a file, or generated.

use crate::error::Error;
use crate::file::TensorFile;
use crate::input::{Input, Sizes};
use crate::tensors::Tensor;
use longreach_kernels::DType;
use std::f64::consts::TAU;
use std::path::Path;

/// The `dout` of `--dout FILE`, else of INPUT, else generated from `seed`.
///
/// Fails when a file has a `dout` that is not like the output.
pub fn dout(input: &Input, path: Option<&Path>, seed: u64) -> Result<Tensor, Error> {
    let sizes = &input.sizes;
    match path {
        Some(path) => read(&TensorFile::open("--dout", path)?, sizes),
        None if input.file.has("dout") => read(&input.file, sizes),
        None => normal(seed, Stream::Dout, sizes.dtype, sizes.out_shape()),
    }
}

fn read(file: &TensorFile, sizes: &Sizes) -> Result<Tensor, Error> {
    let dout = file.tensor("dout", "[B, Sq, Hq, Dv]")?;
    if dout.shape() != sizes.out_shape() {
        return Err(file.bad(format!(
            "tensor dout has shape {:?}, expected {:?} as the output has",
            dout.shape(),
            sizes.out_shape()
        )));
    }
    if dout.dtype() != sizes.dtype {
        return Err(file.bad(format!(
            "tensor dout has type {}, expected {} as q, k and v have",
            dout.dtype(),
            sizes.dtype
        )));
    }
    Ok(dout)
}

/// Which tensor a normal sequence is for, so that tensors of one seed are independent.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// The output's gradient.
    Dout,
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
}

/// N(0, 1) rounded to `dtype`. Each element is a function of the seed, the stream and its position in the
/// whole tensor, whoever holds it.
///
/// Fails when memory runs out.
pub fn normal(seed: u64, stream: Stream, dtype: DType, shape: [usize; 4]) -> Result<Tensor, Error> {
    let key = mix(seed ^ mix(stream as u64));
    Tensor::generated(|at| normal_at(key, at) as f32, dtype, shape)
}

/// Element `at` of the normal sequence `key`, by Box and Muller from two hashed counters.
fn normal_at(key: u64, at: u64) -> f64 {
    let uniform = |counter: u64| {
        let bits = mix(key.wrapping_add(counter.wrapping_mul(GOLDEN)));
        // In (0, 1), never 0: its logarithm is taken.
        ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let (radius, angle) = (uniform(at.wrapping_mul(2)), uniform(at.wrapping_mul(2).wrapping_add(1)));
    (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64, which spreads a counter over all 64 bits.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(seed: u64, shape: [usize; 4]) -> Vec<f32> {
        normal(seed, Stream::Dout, DType::F32, shape).unwrap().view().to_f32()
    }

    #[test]
    fn the_generated_values_are_normal() {
        let x = values(7, [1, 500, 2, 100]);
        let n = x.len() as f64;
        let moment = |power: i32| x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / n;
        assert!(moment(1).abs() < 0.02, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "variance {}", moment(2));
        assert!(moment(3).abs() < 0.05, "skew {}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.1, "kurtosis {}", moment(4));
    }

    #[test]
    fn a_value_depends_on_seed_and_position_only() {
        let long = values(7, [1, 500, 2, 100]);
        let short = values(7, [1, 30, 2, 100]);
        assert_eq!(short[..], long[..short.len()]);
        let other = values(8, [1, 30, 2, 100]);
        assert!(short.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
    }

    #[test]
    fn the_first_values_of_seed_0_stay_what_they_are() {
        // Results written from generated gradients must be the same in every version.
        let x = values(0, [1, 1, 1, 3]);
        for (x, expected) in x.iter().zip(FIRST) {
            assert!((x - expected).abs() < 1e-6, "{x}, not {expected}");
        }
    }

    const FIRST: [f32; 3] = [1.9549744, 1.3099995, -0.3639917];

    #[test]
    fn a_tensor_that_cannot_be_held_is_an_error() {
        let error = normal(0, Stream::Q, DType::F32, [1, usize::MAX / 2, 4, 1]).unwrap_err();
        assert!(error.to_string().starts_with("memory ran out"), "{error}");
    }
}

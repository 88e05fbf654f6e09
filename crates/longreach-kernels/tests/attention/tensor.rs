//! Tensors in any type and memory order.

use half::{bf16, f16};
use longreach_kernels::{DType, Data, View};

/// A tensor `[batch, rows, heads, dim]` with its own memory order.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub f32: Vec<f32>,
    pub f16: Vec<f16>,
    pub bf16: Vec<bf16>,
    pub dtype: DType,
    pub shape: [usize; 4],
    pub strides: [usize; 4],
}

impl Tensor {
    /// Row-major normal values, rounded to `dtype`.
    pub fn normal(shape: [usize; 4], dtype: DType, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut normal =
            || (-2.0 * uniform().max(1e-300).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| normal() as f32).collect();
        Self::from_values(values, shape, dtype)
    }

    pub fn from_values(values: Vec<f32>, shape: [usize; 4], dtype: DType) -> Self {
        let strides = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1];
        let mut own = Self { f32: values, f16: Vec::new(), bf16: Vec::new(), dtype, shape, strides };
        match dtype {
            DType::F32 => {}
            DType::F16 => own.f16 = own.f32.iter().map(|&x| f16::from_f32(x)).collect(),
            DType::Bf16 => own.bf16 = own.f32.iter().map(|&x| bf16::from_f32(x)).collect(),
        }
        own
    }

    /// The same values in memory order `strides` (of a buffer with gaps of NaN), from element 0 on.
    pub fn restrided(&self, strides: [usize; 4]) -> Self {
        let reach: usize = self.shape.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum();
        let mut values = vec![f32::NAN; reach + 1];
        let [nb, ns, nh, nd] = self.shape;
        for b in 0..nb {
            for s in 0..ns {
                for h in 0..nh {
                    for d in 0..nd {
                        values[b * strides[0] + s * strides[1] + h * strides[2] + d * strides[3]] =
                            self.view().get([b, s, h, d]);
                    }
                }
            }
        }
        let mut own = Self::from_values(values, self.shape, self.dtype);
        own.strides = strides;
        own
    }

    pub fn view(&self) -> View<'_> {
        let data = match self.dtype {
            DType::F32 => Data::F32(&self.f32),
            DType::F16 => Data::F16(&self.f16),
            DType::Bf16 => Data::Bf16(&self.bf16),
        };
        View::strided(data, self.shape, self.strides).unwrap()
    }

    /// Overwrites a row of every head.
    pub fn set_row(&mut self, b: usize, s: usize, value: f32) {
        for h in 0..self.shape[2] {
            for d in 0..self.shape[3] {
                let at =
                    b * self.strides[0] + s * self.strides[1] + h * self.strides[2] + d * self.strides[3];
                self.f32[at] = value;
                if let Some(x) = self.f16.get_mut(at) {
                    *x = f16::from_f32(value);
                }
                if let Some(x) = self.bf16.get_mut(at) {
                    *x = bf16::from_f32(value);
                }
            }
        }
    }
}

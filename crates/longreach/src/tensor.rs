//! Owned row-major tensors of one of the input types.

use crate::error::Error;
use crate::memory::{count, filled, reserved};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use longreach_kernels::{DType, Data, View};

/// Elements of one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Elements {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 16-bit IEEE floats.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Elements {
    /// `len` zeros of `dtype`; fails when the memory cannot be had, which was to be for `what`.
    pub fn zeros(what: &'static str, dtype: DType, len: usize) -> Result<Self, Error> {
        Ok(match dtype {
            DType::F32 => Elements::F32(filled(what, 0.0, len)?),
            DType::F16 => Elements::F16(filled(what, f16::ZERO, len)?),
            DType::Bf16 => Elements::Bf16(filled(what, bf16::ZERO, len)?),
        })
    }

    /// The elements, borrowed.
    pub fn data(&self) -> Data<'_> {
        match self {
            Elements::F32(x) => Data::F32(x),
            Elements::F16(x) => Data::F16(x),
            Elements::Bf16(x) => Data::Bf16(x),
        }
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Elements::F32(x) => bytemuck::cast_slice(x),
            Elements::F16(x) => bytemuck::cast_slice(x),
            Elements::Bf16(x) => bytemuck::cast_slice(x),
        }
    }

    /// The elements' bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Elements::F32(x) => bytemuck::cast_slice_mut(x),
            Elements::F16(x) => bytemuck::cast_slice_mut(x),
            Elements::Bf16(x) => bytemuck::cast_slice_mut(x),
        }
    }
}

/// A row-major tensor `[batch, sequence, heads, dim]`; log-sum-exps are `[batch, heads, sequence, 1]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    data: Elements,
    shape: [usize; 4],
}

impl Tensor {
    /// A tensor over `data`; fails when the elements are not exactly those of `shape`.
    pub fn new(data: Elements, shape: [usize; 4]) -> Result<Self, Error> {
        let needed = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        if needed != Some(data.data().len()) {
            return Err(Error::Input(format!(
                "a tensor of shape {shape:?} cannot be made of {} elements",
                data.data().len()
            )));
        }
        Ok(Self { data, shape })
    }

    /// The elements of `view`, copied in order. Fails when the memory cannot be had.
    pub fn copy_of(view: &View) -> Result<Self, Error> {
        Self::gather(view, std::iter::once(0..view.shape()[1]))
    }

    /// The rows (positions along the sequence) of `view` in `ranges`, one range after another, copied.
    /// Fails when the memory cannot be had.
    pub fn gather(
        view: &View,
        ranges: impl Iterator<Item = std::ops::Range<usize>> + Clone,
    ) -> Result<Self, Error> {
        let [batch, _, heads, dim] = view.shape();
        let rows: usize = ranges.clone().map(|range| range.len()).sum();
        let shape = [batch, rows, heads, dim];
        let data = match view.data() {
            Data::F32(x) => Elements::F32(gather(x, view, ranges, shape)?),
            Data::F16(x) => Elements::F16(gather(x, view, ranges, shape)?),
            Data::Bf16(x) => Elements::Bf16(gather(x, view, ranges, shape)?),
        };
        Ok(Self { data, shape })
    }

    /// The elements of a tensor that longreach made as float32.
    pub(crate) fn f32(&self) -> &[f32] {
        self.as_f32().unwrap_or_default()
    }

    /// As [`Tensor::f32`], to be written.
    pub(crate) fn f32_mut(&mut self) -> &mut [f32] {
        match &mut self.data {
            Elements::F32(data) => data,
            _ => &mut [],
        }
    }

    /// The elements become `exact`, of which there are as many, rounded to nearest even.
    pub(crate) fn round(&mut self, exact: &[f32]) {
        match &mut self.data {
            Elements::F32(data) => data.copy_from_slice(exact),
            Elements::F16(data) => data.convert_from_f32_slice(exact),
            Elements::Bf16(data) => data.convert_from_f32_slice(exact),
        }
    }

    /// The elements' bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.bytes_mut()
    }

    /// `[batch, sequence, heads, dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data.data().dtype()
    }

    /// The elements.
    pub fn elements(&self) -> &Elements {
        &self.data
    }

    /// The elements as float32, where they are of that type; outputs and gradients are.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.data {
            Elements::F32(data) => Some(data),
            _ => None,
        }
    }

    /// A view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        View::contiguous(self.data.data(), self.shape).expect("a tensor has the elements of its shape")
    }
}

fn gather<T: Copy>(
    data: &[T],
    view: &View,
    ranges: impl Iterator<Item = std::ops::Range<usize>> + Clone,
    shape: [usize; 4],
) -> Result<Vec<T>, Error> {
    let [batch, _, heads, dim] = view.shape();
    let [sb, ss, sh, sd] = view.strides();
    let mut out = reserved("a copy of an input", count("a copy of an input", shape)?)?;
    for b in 0..batch {
        for s in ranges.clone().flatten() {
            for h in 0..heads {
                let from = b * sb + s * ss + h * sh;
                if sd == 1 && dim > 0 {
                    out.extend_from_slice(&data[from..from + dim]);
                } else {
                    out.extend((0..dim).map(|d| data[from + d * sd]));
                }
            }
        }
    }
    Ok(out)
}

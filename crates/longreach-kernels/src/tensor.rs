//! Strided views over slices, as every kernel takes them.

use half::{bf16, f16};

/// Element type of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// Bytes an element.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The name used on the command line and in JSON: `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The elements behind a view.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit IEEE floats.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl Data<'_> {
    /// The element type.
    pub const fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::Bf16(_) => DType::Bf16,
        }
    }

    /// Number of elements in the slice (not in the view).
    pub const fn len(&self) -> usize {
        match self {
            Data::F32(s) => s.len(),
            Data::F16(s) => s.len(),
            Data::Bf16(s) => s.len(),
        }
    }

    /// Whether the slice has no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`, widened to float32 (exact for all three types).
    #[inline]
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Data::F32(s) => s[index],
            Data::F16(s) => s[index].to_f32(),
            Data::Bf16(s) => s[index].to_f32(),
        }
    }
}

/// A strided view `[batch, sequence, heads, dim]`: element `[b, s, h, d]` is
/// `data[b * strides[0] + s * strides[1] + h * strides[2] + d * strides[3]]`.
///
/// Strides are in elements and never negative; a stride of 0 repeats an element (what `expand` gives).
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: Data<'a>,
    shape: [usize; 4],
    strides: [usize; 4],
}

/// Why a view could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a view of shape {shape:?} with strides {strides:?} needs {needed} elements, the slice has {len}")]
pub struct ViewError {
    /// The shape asked for.
    pub shape: [usize; 4],
    /// The strides asked for, in elements.
    pub strides: [usize; 4],
    /// Elements that the view reaches (`usize::MAX` when the product overflows).
    pub needed: usize,
    /// Elements that the slice has.
    pub len: usize,
}

impl<'a> View<'a> {
    /// A view with explicit strides; fails when it would reach beyond `data`.
    pub fn strided(data: Data<'a>, shape: [usize; 4], strides: [usize; 4]) -> Result<Self, ViewError> {
        let needed = if shape.contains(&0) {
            Some(0)
        } else {
            shape
                .iter()
                .zip(&strides)
                .try_fold(1usize, |reach, (&n, &stride)| reach.checked_add((n - 1).checked_mul(stride)?))
        };
        match needed {
            Some(needed) if needed <= data.len() => Ok(Self { data, shape, strides }),
            _ => Err(ViewError { shape, strides, needed: needed.unwrap_or(usize::MAX), len: data.len() }),
        }
    }

    /// A row-major view of all of `data`; fails when `data` is shorter than the shape.
    pub fn contiguous(data: Data<'a>, shape: [usize; 4]) -> Result<Self, ViewError> {
        let stride1 = shape[2].saturating_mul(shape[3]);
        let strides = [shape[1].saturating_mul(stride1), stride1, shape[3], 1];
        Self::strided(data, shape, strides)
    }

    /// The elements behind the view.
    pub const fn data(&self) -> Data<'a> {
        self.data
    }

    /// `[batch, sequence, heads, dim]`.
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Strides in elements, in the order of the shape.
    pub const fn strides(&self) -> [usize; 4] {
        self.strides
    }

    /// The element type.
    pub const fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Element `[b, s, h, d]`, widened to float32.
    #[inline]
    pub fn get(&self, [b, s, h, d]: [usize; 4]) -> f32 {
        let [sb, ss, sh, sd] = self.strides;
        self.data.get(b * sb + s * ss + h * sh + d * sd)
    }

    /// The same elements as a row-major vector of float32.
    pub fn to_f32(&self) -> Vec<f32> {
        let [nb, ns, nh, nd] = self.shape;
        let mut out = Vec::with_capacity(nb * ns * nh * nd);
        for b in 0..nb {
            for s in 0..ns {
                for h in 0..nh {
                    out.extend((0..nd).map(|d| self.get([b, s, h, d])));
                }
            }
        }
        out
    }
}

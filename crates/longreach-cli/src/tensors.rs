//! Tensors of a file or of a generator, as the engine's views.

use crate::error::Error;
use half::{bf16, f16};
use longreach_kernels::{DType, Data, View};
use memmap2::Mmap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// A contiguous tensor `[batch, sequence, heads, dim]`.
#[derive(Debug)]
pub struct Tensor {
    shape: [usize; 4],
    elements: Elements,
}

#[derive(Debug)]
enum Elements {
    /// Bytes of a file, aligned for their type.
    Mapped {
        map: Arc<Mmap>,
        bytes: Range<usize>,
        dtype: DType,
    },
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Tensor {
    /// A tensor over little-endian `bytes` of `map`; the caller has checked that they are inside the map and
    /// fill the shape. They are copied only where they are not aligned for their type.
    pub fn mapped(map: Arc<Mmap>, bytes: Range<usize>, dtype: DType, shape: [usize; 4]) -> Self {
        let aligned = (map[bytes.clone()].as_ptr() as usize).is_multiple_of(dtype.size());
        let elements = if aligned && cfg!(target_endian = "little") {
            Elements::Mapped { map, bytes, dtype }
        } else {
            copied(&map[bytes], dtype)
        };
        Self { shape, elements }
    }

    /// A tensor of `value(i)` for each element i, rounded to `dtype`.
    ///
    /// Fails when memory runs out.
    pub fn generated(
        value: impl Fn(u64) -> f32 + Sync,
        dtype: DType,
        shape: [usize; 4],
    ) -> Result<Self, Error> {
        let elements = match dtype {
            DType::F32 => Elements::F32(filled(value, shape)?),
            DType::F16 => Elements::F16(filled(|at| f16::from_f32(value(at)), shape)?),
            DType::Bf16 => Elements::Bf16(filled(|at| bf16::from_f32(value(at)), shape)?),
        };
        Ok(Self { shape, elements })
    }

    /// `[batch, sequence, heads, dim]`.
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        let data = self.data();
        data.len() * data.dtype().size()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.data().dtype()
    }

    fn data(&self) -> Data<'_> {
        match &self.elements {
            // Alignment and length were checked when the tensor was made.
            Elements::Mapped { map, bytes, dtype } => {
                let bytes = &map[bytes.clone()];
                match dtype {
                    DType::F32 => Data::F32(bytemuck::cast_slice(bytes)),
                    DType::F16 => Data::F16(bytemuck::cast_slice(bytes)),
                    DType::Bf16 => Data::Bf16(bytemuck::cast_slice(bytes)),
                }
            }
            Elements::F32(data) => Data::F32(data),
            Elements::F16(data) => Data::F16(data),
            Elements::Bf16(data) => Data::Bf16(data),
        }
    }

    /// The tensor as a view.
    pub fn view(&self) -> View<'_> {
        View::contiguous(self.data(), self.shape).expect("a tensor has as many elements as its shape")
    }
}

/// Elements that a thread makes at a time.
const CHUNK: usize = 1 << 16;
/// Tensors of fewer elements are made by one thread.
const LARGE: usize = 1 << 24;

fn filled<T: Copy + Default + Send>(
    value: impl Fn(u64) -> T + Sync,
    shape: [usize; 4],
) -> Result<Vec<T>, Error> {
    let len = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let mut values = Vec::new();
    let len = len
        .filter(|&len| values.try_reserve_exact(len).is_ok())
        .ok_or_else(|| Error::Run(format!("memory ran out: a tensor of shape {shape:?} does not fit")))?;
    values.resize(len, T::default());
    // Each element is a function of its place, so threads change nothing; without any, this one does it all.
    let chunks = Mutex::new(values.chunks_mut(CHUNK).zip((0..).step_by(CHUNK)));
    let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((values, first)) = next() {
            values.iter_mut().zip(first..).for_each(|(to, at)| *to = value(at));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let others = if len < LARGE { 0 } else { threads - 1 };
    std::thread::scope(|scope| {
        for _ in 0..others {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    Ok(values)
}

fn copied(bytes: &[u8], dtype: DType) -> Elements {
    match dtype {
        DType::F32 => Elements::F32(words(bytes).map(f32::from_le_bytes).collect()),
        DType::F16 => Elements::F16(words(bytes).map(f16::from_le_bytes).collect()),
        DType::Bf16 => Elements::Bf16(words(bytes).map(bf16::from_le_bytes).collect()),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.chunks_exact(N).map(|word| word.try_into().expect("a chunk has N bytes"))
}

//! Tensors where an engine works: in the host's memory, or in a GPU's.

use crate::error::Error;
use crate::gpu_tensor::GpuTensor;
use crate::memory::count;
use crate::tensor::{Elements, Tensor};
use longreach_device::cuda::{self, Gpu};
use longreach_device::{Bytes, BytesMut, Parts};
use longreach_kernels::DType;
use std::sync::{Arc, OnceLock};

/// Whose memory it is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// The host's.
    Host,
    /// A GPU's.
    Gpu(Arc<Gpu>),
}

/// A row-major tensor. What is in it at first is not defined.
pub(crate) enum Array {
    /// In the host's memory.
    Host(Tensor),
    /// In a GPU's.
    Gpu(GpuArray),
}

/// A tensor in a GPU's memory.
pub(crate) struct GpuArray {
    tensor: GpuTensor,
    /// The same on the host, once somebody has asked for it.
    copy: OnceLock<Tensor>,
}

impl Array {
    pub(crate) fn new(
        place: &Place,
        what: &'static str,
        dtype: DType,
        shape: [usize; 4],
    ) -> Result<Self, Error> {
        let len = count(what, shape)?;
        match place {
            Place::Host => Ok(Array::Host(Tensor::new(Elements::zeros(what, dtype, len)?, shape)?)),
            Place::Gpu(gpu) => {
                let bytes = len.checked_mul(dtype.size());
                let bytes = bytes.ok_or(Error::OutOfMemory { what, bytes: usize::MAX })?;
                let memory = Arc::new(cuda::Memory::new(gpu, bytes)?);
                Ok(GpuTensor { memory, dtype, shape }.into())
            }
        }
    }

    pub(crate) fn shape(&self) -> [usize; 4] {
        match self {
            Array::Host(tensor) => tensor.shape(),
            Array::Gpu(array) => array.tensor.shape,
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Array::Host(tensor) => tensor.dtype(),
            Array::Gpu(array) => array.tensor.dtype,
        }
    }

    /// The tensor in the host's memory, for kernels of the CPU.
    pub(crate) fn host(&self) -> Result<&Tensor, Error> {
        match self {
            Array::Host(tensor) => Ok(tensor),
            Array::Gpu(_) => Err(elsewhere("a GPU", "the host")),
        }
    }

    /// Float32 elements in the host's memory.
    pub(crate) fn f32(&self) -> Result<&[f32], Error> {
        Ok(self.host()?.f32())
    }

    /// As [`Array::f32`], to be written.
    pub(crate) fn f32_mut(&mut self) -> Result<&mut [f32], Error> {
        match self {
            Array::Host(tensor) => Ok(tensor.f32_mut()),
            Array::Gpu(_) => Err(elsewhere("a GPU", "the host")),
        }
    }

    /// Becomes `exact`, float32 in the host's memory, rounded to this array's type.
    pub(crate) fn round(&mut self, exact: &Array) -> Result<(), Error> {
        let exact = exact.f32()?;
        match self {
            Array::Host(tensor) => {
                tensor.round(exact);
                Ok(())
            }
            Array::Gpu(_) => Err(elsewhere("a GPU", "the host")),
        }
    }

    /// The tensor's memory on a GPU, for its kernels.
    pub(crate) fn gpu(&self) -> Result<&cuda::Memory, Error> {
        match self {
            Array::Gpu(array) => Ok(&array.tensor.memory),
            Array::Host(_) => Err(elsewhere("the host", "a GPU")),
        }
    }

    /// The tensor in the host's memory, copied there once where it is elsewhere. To be called when it is complete.
    pub(crate) fn tensor(&self) -> Result<&Tensor, Error> {
        let array = match self {
            Array::Host(tensor) => return Ok(tensor),
            Array::Gpu(array) => array,
        };
        if let Some(tensor) = array.copy.get() {
            return Ok(tensor);
        }
        let tensor = array.tensor.download()?;
        Ok(array.copy.get_or_init(|| tensor))
    }
}

/// An engine's memory is all in one place, so this is a mistake of its own.
fn elsewhere(given: &str, wanted: &str) -> Error {
    Error::Input(format!("memory of {given} was given to work on {wanted}"))
}

impl Parts for Array {
    fn part(&self, part: usize) -> Option<Bytes<'_>> {
        (part == 0).then_some(match self {
            Array::Host(tensor) => Bytes::Host(tensor.elements().bytes()),
            Array::Gpu(array) => Bytes::Gpu(&array.tensor.memory),
        })
    }

    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>> {
        match self {
            _ if part > 0 => None,
            Array::Host(tensor) => Some(BytesMut::Host(tensor.bytes_mut())),
            // What others hold too is not written.
            Array::Gpu(array) => Arc::get_mut(&mut array.tensor.memory).map(BytesMut::Gpu),
        }
    }
}

impl From<GpuTensor> for Array {
    fn from(tensor: GpuTensor) -> Self {
        Array::Gpu(GpuArray { tensor, copy: OnceLock::new() })
    }
}

/// `len` float32 elements that are cut up by whoever uses them.
pub(crate) fn flat(place: &Place, what: &'static str, len: usize) -> Result<Array, Error> {
    Array::new(place, what, DType::F32, [1, 1, 1, len])
}

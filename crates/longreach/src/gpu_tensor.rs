//! Tensors in a GPU's memory.

use crate::error::Error;
use crate::memory::count;
use crate::tensor::{Elements, Tensor};
use longreach_device::cuda::{self, Gpu};
use longreach_kernels::{DType, View};
use std::sync::Arc;

/// A row-major tensor `[batch, sequence, heads, dim]` in a GPU's memory. A clone is another handle of the same memory,
/// which nobody changes as long as there are several.
#[derive(Clone, Debug)]
pub struct GpuTensor {
    pub(crate) memory: Arc<cuda::Memory>,
    pub(crate) dtype: DType,
    pub(crate) shape: [usize; 4],
}

impl GpuTensor {
    /// The elements of `view`, copied to `gpu`; they are there when this returns. Not collective.
    pub fn upload(gpu: &Arc<Gpu>, view: &View) -> Result<Self, Error> {
        let tensor = Tensor::copy_of(view)?;
        let bytes = tensor.elements().bytes();
        let mut memory = cuda::Memory::new(gpu, bytes.len())?;
        let stream = cuda::Stream::new(gpu)?;
        stream.upload(bytes, &mut memory)?;
        stream.synchronize()?;
        Ok(Self { memory: Arc::new(memory), dtype: tensor.dtype(), shape: tensor.shape() })
    }

    /// The elements, copied to the host. To be called when they are complete. Not collective.
    pub fn download(&self) -> Result<Tensor, Error> {
        const WHAT: &str = "a copy on the host";
        let mut elements = Elements::zeros(WHAT, self.dtype, count(WHAT, self.shape)?)?;
        cuda::Stream::new(self.memory.gpu())?.download(&self.memory, elements.bytes_mut())?;
        Tensor::new(elements, self.shape)
    }

    /// `[batch, sequence, heads, dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.memory.gpu()
    }
}

/// An input of a call, where it is.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// In the host's memory, with any strides. It is copied before the call returns.
    Host(View<'a>),
    /// In the memory of the GPU that the PE computes on, complete. It is used as it is, and not to be changed before its
    /// last user, which may be the backward, is done.
    Gpu(&'a GpuTensor),
}

impl<'a> From<&View<'a>> for Input<'a> {
    fn from(view: &View<'a>) -> Self {
        Input::Host(*view)
    }
}

impl<'a> From<&'a GpuTensor> for Input<'a> {
    fn from(tensor: &'a GpuTensor) -> Self {
        Input::Gpu(tensor)
    }
}

impl Input<'_> {
    /// `[batch, sequence, heads, dim]`.
    pub fn shape(&self) -> [usize; 4] {
        match self {
            Input::Host(view) => view.shape(),
            Input::Gpu(tensor) => tensor.shape,
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Input::Host(view) => view.dtype(),
            Input::Gpu(tensor) => tensor.dtype,
        }
    }
}

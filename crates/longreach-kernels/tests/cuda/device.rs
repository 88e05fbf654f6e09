//! A GPU and memory on it, if there is one.

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use half::{bf16, f16};
use longreach_kernels::cuda::cudnn::Element;
use std::sync::Arc;

/// A stream of GPU 0; none, after saying so, where there is no GPU.
pub fn stream(test: &str) -> Option<Arc<CudaStream>> {
    // SAFETY: looks for a library by name.
    let present = unsafe { sys::is_culib_present() };
    if !present || CudaContext::device_count().unwrap_or(0) < 1 {
        eprintln!("SKIPPED {test}: it needs an NVIDIA GPU with its driver");
        return None;
    }
    let context = CudaContext::new(0).expect("GPU 0");
    Some(context.default_stream())
}

/// N(0,1) numbers as the GPU has them, and their exact values.
pub struct Numbers {
    pub exact: Vec<f64>,
    pub memory: CudaSlice<u16>,
}

impl Numbers {
    pub fn new(stream: &Arc<CudaStream>, element: Element, values: &[f32]) -> Self {
        let bits: Vec<u16> = values.iter().map(|&x| bits(element, x)).collect();
        let exact = bits.iter().map(|&x| number(element, x)).collect();
        Self { exact, memory: stream.clone_htod(&bits).expect("memory") }
    }

    pub fn address(&self, stream: &Arc<CudaStream>) -> u64 {
        self.memory.device_ptr(stream).0
    }
}

pub fn bits(element: Element, x: f32) -> u16 {
    match element {
        Element::Bf16 => bf16::from_f32(x).to_bits(),
        Element::F16 => f16::from_f32(x).to_bits(),
    }
}

pub fn number(element: Element, bits: u16) -> f64 {
    match element {
        Element::Bf16 => bf16::from_bits(bits).to_f64(),
        Element::F16 => f16::from_bits(bits).to_f64(),
    }
}

/// Memory full of NaN.
pub fn poisoned(stream: &Arc<CudaStream>, len: usize) -> CudaSlice<u16> {
    stream.clone_htod(&vec![u16::MAX; len]).expect("memory")
}

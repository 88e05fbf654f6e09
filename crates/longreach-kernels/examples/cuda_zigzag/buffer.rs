//! Memory of the GPU, and the sizes of the problem.

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use half::bf16;
use longreach_kernels::DType;
use longreach_kernels::cuda::{Memory, View};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;
use std::sync::Arc;

pub const Q_HEADS: usize = 64;
pub const KV_HEADS: usize = 8;
pub const DIM: usize = 128;

/// Memory of the GPU with normal numbers, or as it comes.
pub struct Buffer {
    slice: CudaSlice<u8>,
    pub memory: Memory,
}

impl Buffer {
    pub fn new(stream: &Arc<CudaStream>, bytes: usize) -> Self {
        let slice = stream.alloc_zeros::<u8>(bytes.max(256)).expect("memory");
        // SAFETY: the slice lives until the program's end.
        let memory = unsafe { Memory::new(slice.device_ptr(stream).0, bytes) };
        Self { slice, memory }
    }

    /// Normal numbers; a block of them over and over, rotated so that no two blocks begin alike.
    pub fn normal(stream: &Arc<CudaStream>, len: usize, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let block: Vec<bf16> =
            (0..1_000_003).map(|_| bf16::from_f32(random.sample(StandardNormal))).collect();
        let all: Vec<u8> = block.iter().cycle().take(len).flat_map(|x| x.to_bits().to_le_bytes()).collect();
        let mut buffer = Self::new(stream, 2 * len);
        stream.memcpy_htod(&all, &mut buffer.slice).expect("a copy");
        buffer
    }

    pub fn view(&self, rows: usize, heads: usize) -> View {
        View::contiguous(self.memory, DType::Bf16, [1, rows, heads, DIM]).expect("a view")
    }
}

pub fn scale() -> f32 {
    (DIM as f32).powf(-0.5)
}

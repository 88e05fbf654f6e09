//! Launches of the kernels in `parts.cu`.

use super::compile::compile;
use super::cudnn::Element;
use super::error::{Error, driver};
use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;

/// Threads of a block; a warp works on a row of a head.
const THREADS: u32 = 256;
const WARPS: i64 = 8;
/// Blocks of kernels that stride over their elements: some for each multiprocessor of any device.
const BLOCKS: i64 = 2048;

/// The kernels of one element type, on the device of one stream.
pub(super) struct Parts {
    stream: Arc<CudaStream>,
    reset: CudaFunction,
    pack: CudaFunction,
    absorb: CudaFunction,
    finish: CudaFunction,
    add: CudaFunction,
}

/// Addresses of a carried state of one batch row: acc `[heads, rows, dim]`, max and sum `[heads, rows]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateAt {
    pub(super) acc: u64,
    pub(super) max: u64,
    pub(super) sum: u64,
    pub(super) rows: i32,
}

impl Parts {
    pub(super) fn new(stream: &Arc<CudaStream>, element: Element) -> Result<Self, Error> {
        let context = stream.context();
        let attribute = |attribute| driver("a device attribute", context.attribute(attribute));
        let major = attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let (code, _) = compile(&format!("sm_{major}{minor}"))?;
        let module = driver("to load kernels", context.load_module(Ptx::from_binary(code)))?;
        let of = |name: &str| driver("a kernel", module.load_function(name));
        let name = match element {
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
        };
        Ok(Self {
            stream: stream.clone(),
            reset: of("reset")?,
            pack: of("pack")?,
            absorb: of(&format!("absorb_{name}"))?,
            finish: of(&format!("finish_{name}"))?,
            add: of(&format!("add_{name}"))?,
        })
    }

    /// Writes the identity into a state of `rows` rows of all heads: its acc is not touched, nor looked at before it is
    /// written.
    ///
    /// # Safety
    /// The state's memory must be that large, and nobody else's until the stream has run this.
    pub(super) unsafe fn reset(&self, max: u64, sum: u64, rows: i64) -> Result<(), Error> {
        let mut launch = self.stream.launch_builder(&self.reset);
        launch.arg(&max).arg(&sum).arg(&rows);
        // SAFETY: the arguments are those of the kernel; the caller's promise.
        driver("a launch", unsafe { launch.launch(striding(rows)) }).map(drop)
    }

    /// Copies rows `first`.. of lse `[heads, all_rows]` side by side, into `[heads, rows]`.
    ///
    /// # Safety
    /// As [`Parts::absorb`].
    pub(super) unsafe fn pack(
        &self,
        lse: u64,
        into: u64,
        [rows, heads]: [i32; 2],
        all_rows: i32,
        first: i32,
    ) -> Result<(), Error> {
        let elements = i64::from(rows) * i64::from(heads);
        let mut launch = self.stream.launch_builder(&self.pack);
        launch.arg(&lse).arg(&into).arg(&rows).arg(&all_rows).arg(&first).arg(&elements);
        // SAFETY: as above.
        driver("a launch", unsafe { launch.launch(striding(elements)) }).map(drop)
    }

    /// Adds a part, o `[rows, heads, dim]` and lse `[heads, rows]`, to rows `first`.. of a state.
    ///
    /// # Safety
    /// The memory must be as large as that, 16-byte aligned, and nobody else's until the stream has run this.
    pub(super) unsafe fn absorb(
        &self,
        o: u64,
        lse: u64,
        state: StateAt,
        [rows, heads, dim]: [i32; 3],
        first: i32,
    ) -> Result<(), Error> {
        let mut launch = self.stream.launch_builder(&self.absorb);
        launch.arg(&o).arg(&lse).arg(&state.acc).arg(&state.max).arg(&state.sum);
        launch.arg(&rows).arg(&heads).arg(&dim).arg(&state.rows).arg(&first);
        // SAFETY: as above.
        driver("a launch", unsafe { launch.launch(warps(rows, heads)) }).map(drop)
    }

    /// Normalises a state into `rounded` `[rows, heads, dim]` and lse `[heads, rows]`, and into `out` in float32 where
    /// that is not 0.
    ///
    /// # Safety
    /// As [`Parts::absorb`].
    pub(super) unsafe fn finish(
        &self,
        state: StateAt,
        [out, rounded, lse]: [u64; 3],
        heads: i32,
        dim: i32,
    ) -> Result<(), Error> {
        let mut launch = self.stream.launch_builder(&self.finish);
        launch.arg(&state.acc).arg(&state.max).arg(&state.sum).arg(&out).arg(&rounded).arg(&lse);
        launch.arg(&state.rows).arg(&heads).arg(&dim);
        // SAFETY: as above.
        driver("a launch", unsafe { launch.launch(warps(state.rows, heads)) }).map(drop)
    }

    /// Adds `elements` of `part`, a multiple of 4, to float32 sums.
    ///
    /// # Safety
    /// As [`Parts::absorb`].
    pub(super) unsafe fn add(&self, sum: u64, part: u64, elements: i64) -> Result<(), Error> {
        debug_assert_eq!(elements % 4, 0, "rows are multiples of 8 elements");
        let fours = elements / 4;
        let mut launch = self.stream.launch_builder(&self.add);
        launch.arg(&sum).arg(&part).arg(&fours);
        // SAFETY: as above.
        driver("a launch", unsafe { launch.launch(striding(fours)) }).map(drop)
    }
}

fn warps(rows: i32, heads: i32) -> LaunchConfig {
    let warps = i64::from(rows) * i64::from(heads);
    config(warps.div_euclid(WARPS) + i64::from(warps % WARPS > 0))
}

fn striding(elements: i64) -> LaunchConfig {
    config((elements / i64::from(THREADS) + 1).min(BLOCKS))
}

fn config(blocks: i64) -> LaunchConfig {
    // A grid has at most 2^31 - 1 blocks; rows and heads fit 32 bits, eight of them a block.
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

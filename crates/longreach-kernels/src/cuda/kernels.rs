//! The project's own kernels on a stream.

use super::cudnn::Element;
use super::rows::{Extent, Rows4};
use super::{cache, driver};
use crate::error::Error;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::sync::Arc;

/// The kernels' source, CUDA C++ that needs no header.
pub const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/state.cu"),
    include_str!("../../kernels/rows.cu")
);

const NAMES: [&str; 20] = [
    "merge_bf16",
    "merge_f16",
    "finish_bf16",
    "finish_f16",
    "finish_f32_bf16",
    "finish_f32_f16",
    "hold",
    "copy",
    "copy_strided",
    "add_bf16",
    "add_f16",
    "add_f32",
    "put_bf16",
    "put_f16",
    "cast_bf16",
    "cast_f16",
    "copy_numbers",
    "fill",
    "stamp",
    "pace",
];

/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// Pieces that a thread has under way at once, as in the source.
pub(super) const UNROLL: usize = 4;
/// Blocks along a dimension of a grid at most; what is beyond is taken in turns.
pub(super) const BLOCKS: usize = 4096;
/// The kernels, loaded, and the stream they run on.
pub(super) struct Kernels {
    stream: Arc<CudaStream>,
    functions: HashMap<&'static str, CudaFunction>,
}

/// The architecture that the kernels are compiled for on a GPU of this compute capability.
fn arch((major, minor): (i32, i32)) -> String {
    // Hopper's code is of Hopper only, which is what is wanted: a cubin never runs elsewhere.
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// The kernel for this type.
pub(super) fn name(kernel: &str, element: Element) -> String {
    let element = match element {
        Element::Bf16 => "bf16",
        Element::F16 => "f16",
    };
    format!("{kernel}_{element}")
}

impl Kernels {
    /// Loads the kernels; compiles them where no cache has them.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        let context: &Arc<CudaContext> = stream.context();
        let capability = |attribute| context.attribute(attribute).map_err(driver);
        let major = capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let cubin = cache::kernels(&arch((major, minor)))?;
        let module = context.load_module(Ptx::from_binary(cubin)).map_err(driver)?;
        let load = |name: &'static str| Ok((name, module.load_function(name).map_err(driver)?));
        let functions = NAMES.into_iter().map(load).collect::<Result<_, Error>>()?;
        Ok(Self { stream: stream.clone(), functions })
    }

    pub(super) fn start(&self, name: &str) -> LaunchArgs<'_> {
        self.stream.launch_builder(&self.functions[name])
    }

    /// Adds a part `[batch, heads, rows, dim]` with its lse `[batch, heads, rows]` into a state of `state_heads` heads
    /// and `state_rows` rows, at the addresses `[acc, max, sum]` of the part's first row.
    ///
    /// # Safety
    /// All addresses are of memory of that size that stays valid until the stream has run the work.
    pub unsafe fn merge(
        &self,
        element: Element,
        [o, lse]: [u64; 2],
        state: [u64; 3],
        [rows, state_heads, state_rows]: [usize; 3],
        extent: Extent,
    ) -> Result<(), Error> {
        let [acc, max, sum] = state;
        let [rows_, heads, all] = [rows, state_heads, state_rows].map(|size| size as i64);
        let name = name("merge", element);
        let mut launch = self.start(&name);
        launch.arg(&o).arg(&lse).arg(&acc).arg(&max).arg(&sum).arg(&rows_).arg(&heads).arg(&all);
        // SAFETY: the arguments are the kernel's; the memory is the caller's promise.
        unsafe { launch.launch(by_rows(rows, extent)) }.map(drop).map_err(driver)
    }

    /// Notes that parts with this lse `[batch, heads, rows]` stand in the rows' memory, in the second half or the first.
    ///
    /// # Safety
    /// As for [`Kernels::merge`].
    pub unsafe fn hold(
        &self,
        lse: u64,
        second: bool,
        [max, sum]: [u64; 2],
        [rows, state_heads, state_rows]: [usize; 3],
        extent: Extent,
    ) -> Result<(), Error> {
        let second = i32::from(second);
        let [rows_, heads, all] = [rows, state_heads, state_rows].map(|size| size as i64);
        let mut launch = self.start("hold");
        launch.arg(&lse).arg(&max).arg(&sum).arg(&second).arg(&rows_).arg(&heads).arg(&all);
        // SAFETY: the arguments are the kernel's; the memory is the caller's promise.
        unsafe { launch.launch(by_numbers(rows, extent)) }.map(drop).map_err(driver)
    }

    /// Writes the state's rows, whose parts are of `element`, into `out`, float32 or of that type, and lse.
    ///
    /// # Safety
    /// As for [`Kernels::merge`].
    pub unsafe fn finish(
        &self,
        element: Element,
        float: bool,
        state: [u64; 3],
        (out, lse): (Rows4, u64),
        rows: usize,
        extent: Extent,
    ) -> Result<(), Error> {
        let [acc, max, sum] = state;
        let [batch, row, head, _] = out.strides.map(|stride| stride as i64);
        let rows_ = rows as i64;
        let mut launch = self.start(&name(if float { "finish_f32" } else { "finish" }, element));
        launch.arg(&acc).arg(&max).arg(&sum).arg(&out.address).arg(&lse).arg(&rows_);
        launch.arg(&batch).arg(&row).arg(&head);
        // SAFETY: as above.
        unsafe { launch.launch(by_rows(rows, extent)) }.map(drop).map_err(driver)
    }

    /// Copies float32 `[batch, from_heads, from_rows]`, from `from` on, into contiguous `[batch, heads, rows]`.
    ///
    /// # Safety
    /// As for [`Kernels::merge`].
    pub unsafe fn copy_numbers(
        &self,
        [from, to]: [u64; 2],
        [rows, from_heads, from_rows]: [usize; 3],
        extent: Extent,
    ) -> Result<(), Error> {
        let [rows_, heads, all] = [rows, from_heads, from_rows].map(|size| size as i64);
        let mut launch = self.start("copy_numbers");
        launch.arg(&from).arg(&to).arg(&rows_).arg(&heads).arg(&all);
        // SAFETY: the arguments are the kernel's; the memory is the caller's promise.
        unsafe { launch.launch(by_numbers(rows, extent)) }.map(drop).map_err(driver)
    }

    /// Sets `count` float32 numbers.
    ///
    /// # Safety
    /// As for [`Kernels::merge`].
    pub unsafe fn fill(&self, address: u64, value: f32, count: usize) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let count_ = count as i64;
        let mut launch = self.start("fill");
        launch.arg(&address).arg(&value).arg(&count_);
        let blocks = count.div_ceil(THREADS).min(BLOCKS) as u32;
        let (grid_dim, block_dim) = ((blocks, 1, 1), (THREADS as u32, 1, 1));
        // SAFETY: as above.
        unsafe { launch.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }
            .map(drop)
            .map_err(driver)
    }
}

/// A block has a thread for eight columns, and several rows; neighbours have other heads of the same rows.
fn by_rows(rows: usize, extent: Extent) -> LaunchConfig {
    let across = extent.dim / 8;
    let down = (THREADS / across.max(1)).max(1);
    let blocks = rows.div_ceil(down * UNROLL).min(BLOCKS);
    let grid_dim = (extent.heads as u32, blocks as u32, extent.batches as u32);
    LaunchConfig { grid_dim, block_dim: (across as u32, down as u32, 1), shared_mem_bytes: 0 }
}

/// A thread for each row of each head.
fn by_numbers(rows: usize, extent: Extent) -> LaunchConfig {
    let grid_dim = (rows.div_ceil(THREADS) as u32, extent.heads as u32, extent.batches as u32);
    LaunchConfig { grid_dim, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_compilers_names() {
        assert_eq!([(8, 0), (9, 0), (10, 0)].map(arch), ["sm_80", "sm_90a", "sm_100"]);
    }
}

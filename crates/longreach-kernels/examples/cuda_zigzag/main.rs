//! Times the tiles of all PEs of a causal zigzag, one PE after another on one GPU, beside one call of cuDNN on the
//! whole sequence in the same run: `cuda_zigzag [SEQLEN...]`, 32768 if none is given.
//!
//! Each PE attends its own two chunks causally, then each of them its remote keys in one full tile. Counted: the calls,
//! gathers, additions in float32, a state's reset, the last normalisation and rounding. Not counted: gets, and
//! the owners' additions of what others return.

#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod buffer;
#[cfg(target_os = "linux")]
mod pe;
#[cfg(target_os = "linux")]
mod whole;

#[cfg(target_os = "linux")]
fn main() {
    bench::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("cuda_zigzag needs Linux with an NVIDIA GPU");
}

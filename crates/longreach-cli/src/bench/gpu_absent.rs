//! `longreach bench attention --device cuda` where GPUs are not supported.

use crate::args::BenchArgs;
use crate::error::Error;
use crate::progress::Progress;
use crate::request::Problem;

/// Refuses.
pub fn attention(_args: &BenchArgs, _problem: &Problem, _progress: &Progress) -> Result<u8, Error> {
    Err(Error::bad("--device", "cuda", "GPUs are supported on Linux: use --device cpu"))
}

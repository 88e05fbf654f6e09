//! `longreach bench`: what is measured, each beside the limit that it is measured against.

pub mod attention;
pub mod get;
#[cfg(target_os = "linux")]
mod gpu;
#[cfg(not(target_os = "linux"))]
#[path = "gpu_absent.rs"]
mod gpu;
mod plain;
#[cfg(target_os = "linux")]
mod whole;

//! Attention through cuDNN against float64, on a machine with an NVIDIA GPU; elsewhere skipped, loudly.
#![cfg(target_os = "linux")]

mod attend;
mod device;
mod graphs;
mod reference;
mod sources;
mod tiles;
mod whole;

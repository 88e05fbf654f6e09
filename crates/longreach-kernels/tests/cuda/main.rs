//! Attention through cuDNN against float64, on a machine with an NVIDIA GPU; elsewhere skipped, loudly.
#![cfg(target_os = "linux")]

mod device;
mod graphs;
mod reference;
mod tiles;
mod whole;

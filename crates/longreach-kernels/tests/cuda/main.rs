//! Attention through cuDNN against float64, on a machine with an NVIDIA GPU; elsewhere skipped, loudly.
#![cfg(target_os = "linux")]
// Tiles list ranges of keys, often one.
#![allow(clippy::single_range_in_vec_init)]

mod device;
mod graphs;
mod reference;
mod tiles;
mod whole;

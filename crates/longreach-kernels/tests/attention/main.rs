//! The kernels through their public face: accuracy, robustness, merging.

#![allow(clippy::single_range_in_vec_init)] // A list of key ranges often has one.

mod accuracy;
mod common;
mod merge;
mod reference;
mod robust;
mod tensor;

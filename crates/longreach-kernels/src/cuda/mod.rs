//! Attention on NVIDIA GPUs, through cuDNN's graph interface.
//!
//! Nothing of CUDA is needed to build this or to start a program that has it: libraries are looked for when they are
//! first asked for, and a missing one is an error that says so.

pub mod cudnn;

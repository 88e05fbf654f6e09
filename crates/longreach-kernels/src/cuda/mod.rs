//! Attention on NVIDIA GPUs, through cuDNN's graph interface.
//!
//! Nothing of CUDA is needed to build this or to start a program that has it: libraries are looked for when they are
//! first asked for, and a missing one is an error that says so.

mod attention;
mod compile;
pub mod cudnn;
pub mod error;
mod operands;
mod parts;
mod pieces;

pub use attention::{Attention, Gradients, State};
pub use compile::{compile, compile_anew};
pub use cudnn::Element;
pub use error::Error;
pub use operands::{Operands, Scratch};
pub use pieces::{Piece, pieces};

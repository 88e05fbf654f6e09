//! Attention on one device.
pub mod tensor;
pub use tensor::{DType, Data, View, ViewError};

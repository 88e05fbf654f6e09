//! The CPU as a device: a stream is an ordered queue with a worker thread of its own.

pub mod event;
pub mod stream;

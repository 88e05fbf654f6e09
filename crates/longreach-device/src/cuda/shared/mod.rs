//! Memory and events of a GPU that several processes share.

mod event;
mod memory;

pub use event::{EventHandle, SharedEvent};
pub use memory::SharedMemory;

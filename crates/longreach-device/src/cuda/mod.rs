//! What is of NVIDIA GPUs: what the streams, events and memory of this crate are made of there.
//!
//! The driver is looked for when a GPU is first asked for; where it is absent, that is an error. A [`Gpu`] is a GPU's
//! primary context, which other libraries of the process use as well. The order of work is this crate's business alone:
//! nothing here is ordered by itself but by streams and events.

mod event;
mod gpu;
mod memory;
pub(crate) mod retired;
mod shared;
mod stream;

pub use event::Event;
pub use gpu::Gpu;
pub use memory::Memory;
pub use shared::{EventHandle, SharedEvent, SharedMemory};
pub use stream::Stream;

use crate::error::Error;
use cudarc::driver::DriverError;

/// What the driver said to `call`, as this crate's error.
fn driver(call: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |error| Error::Driver { call, reason: error.to_string() }
}

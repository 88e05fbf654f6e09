//! Streams, events, loans, memory and timelines of one device: the CPU, or a GPU.
//!
//! What a stream is still producing is a [`Pending`]; nothing reads a `Pending`. See [`loan`] for the whole cycle:
//!
//! ```
//! use longreach_device::{Kind, Label, Slot, Stream, Timeline, unwatched};
//! let timeline = Timeline::new(std::time::Instant::now());
//! let comm = Stream::new("comm", timeline.clone(), unwatched())?;
//! let compute = Stream::new("compute", timeline, unwatched())?;
//!
//! let mut filling = Slot::new("rows", vec![0.0f32; 4]).fill(Label::new(Kind::Get, 0, 1), &comm);
//! comm.launch(Label::new(Kind::Get, 0, 1), (&mut filling,), |(rows,)| {
//!     rows.fill(2.0); // a transfer
//!     Ok(())
//! })?;
//! let pending = filling.finish(&comm)?;
//!
//! let loan = pending.on(Label::new(Kind::Wait, 0, 1), &compute); // orders `compute` after the transfer
//! let mut sum = Slot::new("sum", 0.0f32).fill(Label::new(Kind::Tile, 0, 1), &compute);
//! compute.launch(Label::new(Kind::Tile, 0, 1), (&loan, &mut sum), |(rows, sum)| {
//!     *sum = rows.iter().sum();
//!     Ok(())
//! })?;
//! loan.give_back(&compute)?;
//! assert_eq!(*sum.finish(&compute)?.read()?, 8.0);
//! # Ok::<(), longreach_device::Error>(())
//! ```

#[cfg(target_os = "linux")]
pub mod cuda;
#[cfg(not(target_os = "linux"))]
#[path = "cuda_absent.rs"]
pub mod cuda;
pub mod error;
pub mod event;
pub mod loan;
pub mod memory;
pub mod stream;
pub mod sync;
pub mod timeline;
mod worker;

pub use error::{Error, Fault};
pub use event::Event;
pub use loan::{Filling, Loan, Operand, Operands, Pending, Slot};
pub use memory::{Bytes, BytesMut, Parts};
pub use stream::{Stream, Watch};
pub use timeline::{Kind, Label, Span, Timeline};

/// A [`Watch`] that nobody reads, for streams outside a world.
pub fn unwatched() -> std::sync::Arc<dyn Watch> {
    struct Unwatched;
    impl Watch for Unwatched {
        fn waits(&self, _: &str, _: &str) {}
        fn runs(&self, _: &str) {}
    }
    std::sync::Arc::new(Unwatched)
}

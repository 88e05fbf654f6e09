//! Worlds, teams, symmetric memory and one-sided transfers on streams.
//!
//! A [`World`] is a fixed number of PEs. Each runs the same program; a [`Team`] of them allocates [`Symmetric`]
//! memory and [`Signals`] together, and then any PE gets from and puts into any other's part without that one's
//! help. Signals say when. Creating a world or team, allocating and freeing are collective; nothing else is.
//!
//! ```
//! use longreach_shmem::{Error, Operation, World};
//! let sums = World::threads(3)?.run(|pe| {
//!     let team = pe.team()?;
//!     let (buffer, signals) = (team.allocate(1)?, team.signals(3)?);
//!     let me = team.rank();
//!     buffer.write(me, 0, &[10 + me as u8])?;
//!     (0..3).try_for_each(|peer| signals.set(peer, me, 1))?;
//!     let mut sum = 0u32;
//!     for peer in 0..3 {
//!         signals.wait(peer, 1, "host", peer, "host", Operation::outside("example"))?;
//!         let mut byte = [0];
//!         buffer.read(peer, 0, &mut byte)?;
//!         sum += u32::from(byte[0]);
//!     }
//!     Ok::<_, Error>(sum)
//! })?;
//! assert_eq!(sums, [33, 33, 33]);
//! # Ok::<(), Error>(())
//! ```

pub mod agreement;
mod blame;
mod collect;
mod copy;
mod environment;
pub mod error;
pub mod failure;
mod gather;
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
mod gpu_heap;
mod limits;
mod marks;
mod names;
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
pub mod nvshmem;
#[cfg(all(target_os = "linux", not(shuttle)))]
mod processes;
mod region;
pub mod signals;
pub mod symmetric;
pub mod team;
mod threads;
mod transport;
mod waiting;
pub mod words;
pub mod world;

pub use agreement::{Description, Mismatch};
pub use environment::Rendezvous;
pub use error::Error;
pub use failure::{Failure, FailureKind, Operation};
pub use signals::Signals;
pub use symmetric::{Piece, Symmetric};
pub use team::Team;
pub use world::{MOST_PES, Pe, World};

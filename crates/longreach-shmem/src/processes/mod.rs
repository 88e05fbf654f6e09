//! The transport of PEs that are processes of one Linux machine.
//!
//! What they share is memory files: a board with what all may know of each other, and a segment a PE for each
//! allocation. Descriptors travel over a socket between each two, which also tells when one is gone. Nothing has a
//! name that outlives the processes.

mod bell;
#[cfg(not(loom))]
mod board;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod ledger;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod note;
#[cfg(not(loom))]
mod rendezvous;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
mod watcher;
#[cfg(not(loom))]
mod wire;
#[cfg(not(loom))]
mod words;
#[cfg(not(loom))]
mod world;

#[cfg(not(loom))]
pub(crate) use words::SharedWords;
#[cfg(not(loom))]
pub(crate) use world::join;

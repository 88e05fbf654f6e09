//! Whole worlds in small, through the real engine: on threads, and under a scheduler that tries many interleavings.
//! The latter run with
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p longreach --test worlds`.
#![cfg(not(loom))]

#[cfg(shuttle)]
mod explore;
#[cfg(shuttle)]
mod faults;
mod model;
#[cfg(shuttle)]
mod right;
#[cfg(not(shuttle))]
mod threads;

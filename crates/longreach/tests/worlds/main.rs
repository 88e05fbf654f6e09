//! Whole worlds through the real engine under a scheduler that tries many interleavings. Without its flag this is an
//! empty test. Run with
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p longreach --test worlds`.
#![cfg(shuttle)]

mod explore;
mod faults;
mod model;
mod right;

//! What is fetched and computed where, as pure functions on integers.
pub mod band;
pub use band::{Band, Edge};

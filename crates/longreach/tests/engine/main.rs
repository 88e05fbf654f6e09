//! The engine against float64.

mod harness;
mod smoke;

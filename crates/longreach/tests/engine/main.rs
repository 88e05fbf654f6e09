//! The engine against float64.

mod documents;
mod exactness;
mod faults;
mod gpu;
mod harness;
mod masks;
mod matrix;
mod order;
mod refusals;
mod transports;
mod views;

//! Plans against counting.

mod checker;
mod layouts;
mod memory;
mod properties;
mod rules;
mod text;

//! `longreach bench`: what is measured, each beside the limit that it is measured against.

pub mod attention;
pub mod get;
mod plain;

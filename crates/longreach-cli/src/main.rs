//! The program `longreach`.
fn main() {}

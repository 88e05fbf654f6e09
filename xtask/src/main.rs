//! The checks of this repository, one command each.
fn main() {}

//! What must not compile: reads before arrival, refills under a reader, and memory used after it was given away.
#![cfg(not(any(loom, shuttle)))]

#[test]
fn time_is_in_the_types() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}

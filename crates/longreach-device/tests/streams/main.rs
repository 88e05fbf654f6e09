//! Streams, events and loans through the public interface.
#![cfg(not(any(loom, shuttle)))]

mod faults;
#[cfg(target_os = "linux")]
mod gpu;
mod loans;
mod order;

use longreach_device::{Kind, Label, Stream, Timeline, unwatched};
use std::time::{Duration, Instant};

fn stream(name: &str) -> Stream {
    Stream::new(name, Timeline::new(Instant::now()), unwatched()).expect("a thread")
}

fn label() -> Label {
    Label::new(Kind::Tile, 1, 0)
}

/// Long beside anything that a stream does in these tests.
const LONG: Duration = Duration::from_millis(50);

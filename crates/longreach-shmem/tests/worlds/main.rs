//! Worlds through the public interface: of threads and, where LONGREACH_TRANSPORT is `processes`, of forked processes
//! too, with the same results.
#![cfg(not(any(loom, shuttle)))]

mod collectives;
mod deadlines;
mod failures;
mod signals;
mod teams;
mod transfers;
mod transports;

use longreach_device::{Kind, Label};
use std::time::Duration;

pub use transports::{OnAll, errors, timeless};

const DEADLINE: Duration = Duration::from_millis(200);

fn label() -> Label {
    Label::new(Kind::Put, 1, 0)
}

//! Worlds of threads through the public interface.
#![cfg(not(any(loom, shuttle)))]

mod collectives;
mod deadlines;
mod failures;
mod signals;
mod teams;
mod transfers;

use longreach_device::sync::{Mutex, lock};
use longreach_device::{Kind, Label};
use longreach_shmem::{Error, Pe, World};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_millis(200);

fn label() -> Label {
    Label::new(Kind::Put, 1, 0)
}

/// Runs `program`, which must fail on some PE, and returns what each PE ended with, beside the error of the run.
fn errors(
    world: &World,
    program: impl Fn(&Pe) -> Result<(), Error> + Send + Sync,
) -> (Error, Vec<Option<Error>>) {
    let ends = Mutex::new(vec![None; world.pes()]);
    let run = world
        .run(|pe| program(pe).inspect_err(|error| ends.lock().unwrap()[pe.number()] = Some(error.clone())));
    (run.expect_err("a failure"), lock(&ends).clone())
}

/// The text of an error without its seconds, which differ from run to run.
fn timeless(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.split_once(", after ").and_then(|(before, rest)| Some((before, rest.split_once(" s")?.1))) {
        Some((before, after)) => format!("{before}{after}"),
        None => text,
    }
}

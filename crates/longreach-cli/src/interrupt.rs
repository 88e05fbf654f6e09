//! An interrupt ends the program with its own status, leaves its world, and leaves no half-written file.

#[cfg(unix)]
mod signals;

use crate::error::Error;
#[cfg(unix)]
pub use signals::deliver;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file that is being written, if any.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// SIGINT's number on systems that have one: the status of an interrupted program is 128 above it everywhere.
#[cfg(not(unix))]
const INTERRUPT: i32 = 2;

fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an interrupt remove the unfinished file and end the process, with 128 and the signal's number.
///
/// Call it on the main thread before there are others.
pub fn install() -> Result<(), Error> {
    #[cfg(unix)]
    let listening = signals::listen();
    #[cfg(not(unix))]
    let listening = ctrlc::set_handler(|| end(INTERRUPT));
    listening.map_err(|error| Error::Run(format!("cannot listen for interrupts: {error}")))
}

/// Ends the process for `signal`, from whatever thread learns of it. Where its world has failed before, that is what
/// it ends for.
fn end(signal: i32) -> ! {
    remove_unfinished();
    let told = crate::failed::leave();
    std::process::exit(told.map_or(128 + signal, i32::from));
}

/// Removes the file that is being written, if any.
pub fn remove_unfinished() {
    if let Some(path) = unfinished().take() {
        // The process ends either way, and a file that is already gone is what is wanted.
        let _ = std::fs::remove_file(path);
    }
}

/// Marks a file as unfinished while it lives.
#[derive(Debug)]
pub struct Unfinished(());

impl Unfinished {
    /// The file at `path` goes with the process if that ends now.
    pub fn new(path: &Path) -> Self {
        *unfinished() = Some(path.to_owned());
        Self(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        *unfinished() = None;
    }
}

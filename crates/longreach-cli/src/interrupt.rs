//! An interrupt ends the program with its own status and leaves no half-written file.

use crate::error::{Error, status};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file that is being written, if any.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an interrupt remove the unfinished file and end the process.
///
/// The process ends from the handler's thread: everything that longreach shares is memory of this process.
pub fn install() -> Result<(), Error> {
    ctrlc::set_handler(|| {
        if let Some(path) = unfinished().take() {
            // The process ends either way, and a file that is already gone is what is wanted.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(i32::from(status::INTERRUPTED));
    })
    .map_err(|error| Error::Run(format!("cannot listen for interrupts: {error}")))
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

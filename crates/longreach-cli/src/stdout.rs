//! Standard output, which may be a pipe that nobody reads any more.

use crate::error::Error;
use std::io::{ErrorKind, Write};

/// Prints `text` in one piece. A reader that has gone away is no error: it has all it wanted.
pub fn print(text: &str) -> Result<(), Error> {
    printed(std::io::stdout().lock().write_all(text.as_bytes()))
}

/// What it means how printing went; what is still held back is printed first.
pub fn printed(outcome: std::io::Result<()>) -> Result<(), Error> {
    match outcome.and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Run(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

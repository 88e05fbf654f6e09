//! Standard output, which may be a pipe that nobody reads any more.

use crate::error::Error;
use std::io::{ErrorKind, Write};

/// Prints `text` in one piece. A reader that has gone away is no error: it has all it wanted.
pub fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Usage(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

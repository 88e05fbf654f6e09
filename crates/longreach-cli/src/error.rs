//! What can go wrong, and the exit status that it ends in.

use std::io::{self, Write};

/// A failure that ends the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument, a file or a combination of them that cannot be used.
    #[error("{argument} {}: {why}", shown(value))]
    Bad {
        /// The argument as the user typed it: `--window`, `INPUT`.
        argument: String,
        /// Its value as typed.
        value: String,
        /// What is wrong with it, what is accepted, what to do.
        why: String,
    },
    /// Arguments that the parser refused; the text names them.
    #[error("{0}")]
    Usage(String),
    /// A PE failed, memory ran out, a deadline passed or an output could not be written.
    #[error("{0}")]
    Run(String),
}

/// The statuses that the program ends with.
pub mod status {
    /// All done.
    pub const DONE: u8 = 0;
    /// A check failed, or results are beyond the type that they were to be written in.
    pub const CHECK_FAILED: u8 = 1;
    /// Bad input or an unsupported request.
    pub const BAD_REQUEST: u8 = 2;
    /// A PE failed, memory ran out, a deadline passed or an output could not be written.
    pub const RUN_FAILED: u8 = 3;
}

impl Error {
    /// A value that an argument does not take.
    pub fn bad(argument: impl Into<String>, value: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Bad { argument: argument.into(), value: value.into(), why: why.into() }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Bad { .. } | Self::Usage(_) => status::BAD_REQUEST,
            Self::Run(_) => status::RUN_FAILED,
        }
    }
}

/// Whether `error` says that the machine has no more of something: no fault of what was asked for.
pub fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        // Open files, of this process or of the machine.
        if [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
        {
            return true;
        }
    }
    // Threads and processes are refused as what would block.
    matches!(error.kind(), OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
}

/// Says on stderr, in one line, what went wrong but did not end in an [`Error`].
pub fn complain(text: &str) {
    // In one piece, as other processes may write to the same place. Where stderr cannot be written, the exit status
    // still tells it.
    let line = one_line(&format!("error: {text}")) + "\n";
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// `text` with line breaks as spaces and other control characters escaped, so that it stays one line and
/// cannot steer a terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split(['\n', '\r']).map(str::trim).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
        }
    }
    line
}

/// A value short enough for a message, and visible in it.
pub fn shown(value: &str) -> String {
    const MOST: usize = 200;
    match value.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None if value.trim().is_empty() => format!("'{value}'"),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_the_value_holds() {
        let error = Error::bad("--documents", "0,\n5\x1b[2J", "not a number");
        assert_eq!(one_line(&error.to_string()), "--documents 0, 5\\u{1b}[2J: not a number");
    }

    #[test]
    fn a_long_value_is_cut_at_a_character() {
        let line = Error::bad("--bands", "ä".repeat(5000), "no such file").to_string();
        assert_eq!(line, format!("--bands {}...: no such file", "ä".repeat(200)));
    }

    #[test]
    fn an_empty_value_is_visible() {
        assert_eq!(Error::bad("--scale", "", "not a number").to_string(), "--scale '': not a number");
    }
}

//! Files that are read: none that could block, and what it means when one cannot be read.

use crate::error::{Error, is_shortage};
use crate::failed::limit;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

/// Opens the regular file that `argument` names.
pub fn open(argument: &str, path: &Path) -> Result<File, Error> {
    let cannot = |error| unreadable(argument, path, &error);
    // Asked before opening: opening a pipe would wait for its writer.
    if !path.metadata().map_err(cannot)?.is_file() {
        return Err(Error::bad(argument, path.display().to_string(), "is not a regular file"));
    }
    File::open(path).map_err(cannot)
}

/// Why a file could not be read: it is no fault of the file where the machine has no more memory, for example.
pub fn unreadable(argument: &str, path: &Path, error: &std::io::Error) -> Error {
    let told = Error::bad(argument, path.display().to_string(), format!("cannot be read: {error}"));
    if !is_shortage(error) {
        return told;
    }
    let limit = if error.kind() == ErrorKind::OutOfMemory { limit() } else { String::new() };
    Error::Run(format!("{told}{limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_memory_is_not_the_files_fault() {
        let of = |kind: ErrorKind| unreadable("INPUT", Path::new("x"), &kind.into());
        assert!(matches!(of(ErrorKind::OutOfMemory), Error::Run(_)));
        assert!(matches!(of(ErrorKind::PermissionDenied), Error::Bad { .. }));
        assert!(of(ErrorKind::OutOfMemory).to_string().starts_with("INPUT x: cannot be read: "));
    }
}

//! Compiled kernels on disk, so that one machine compiles once.

use super::kernels::SOURCE;
use super::nvrtc::{compile, compiler_version};
use crate::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Machine code of the kernels for `arch`: from the cache, or compiled and put there.
pub(super) fn kernels(arch: &str) -> Result<Vec<u8>, Error> {
    kernels_in(folder().as_deref(), arch)
}

fn kernels_in(folder: Option<&Path>, arch: &str) -> Result<Vec<u8>, Error> {
    let (major, minor) = compiler_version()?;
    let key = digest(format!("{arch} {major}.{minor} {SOURCE}").as_bytes());
    let file = folder.map(|folder| folder.join(format!("kernels-{arch}-{key:016x}.cubin")));
    if let Some(cubin) = file.as_deref().and_then(read) {
        return Ok(cubin);
    }
    let cubin = compile(SOURCE, arch)?.cubin;
    if let Some(file) = file {
        // A cache that cannot be written costs time at the next start and nothing else.
        let _ = write(&file, &cubin);
    }
    Ok(cubin)
}

fn folder() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path("LONGREACH_CACHE").or_else(|| {
        let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        Some(caches?.join("longreach"))
    })
}

/// The content, without the digest at its end; nothing where that does not fit.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let end = bytes.len().checked_sub(8)?;
    let stored = bytes.split_off(end);
    (stored == digest(&bytes).to_le_bytes()).then_some(bytes)
}

/// Writes beside and renames: others start at the same time, and see all of a file or none.
fn write(file: &Path, cubin: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Relaxed: only the number's uniqueness counts.
    let unique = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let beside = file.with_extension(format!("{}-{}", unique.0, unique.1));
    fs::write(&beside, [cubin, &digest(cubin).to_le_bytes()].concat())?;
    fs::rename(&beside, file).inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// FNV-1a, which is the same in every build.
fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_was_damaged_is_not() {
        let folder = std::env::temp_dir().join(format!("longreach-cache-{}", std::process::id()));
        let file = folder.join("kernels.cubin");
        assert_eq!(read(&file), None);
        write(&file, b"machine code").expect("a file");
        assert_eq!(read(&file).as_deref(), Some(&b"machine code"[..]));
        let mut bytes = fs::read(&file).expect("the file");
        bytes[3] ^= 1;
        fs::write(&file, &bytes).expect("a damaged file");
        assert_eq!(read(&file), None);
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "something was left beside");
        fs::remove_dir_all(&folder).expect("the folder");
    }

    #[test]
    fn kernels_are_compiled_once() {
        if let Err(error) = compiler_version() {
            eprintln!("SKIPPED kernels_are_compiled_once: {error}");
            return;
        }
        let folder = std::env::temp_dir().join(format!("longreach-kernels-{}", std::process::id()));
        let first = kernels_in(Some(&folder), "sm_90a").expect("kernels");
        let files: Vec<_> = fs::read_dir(&folder).expect("the folder").flatten().collect();
        assert_eq!(files.len(), 1);
        // The second time they come from the file: what stands there is what comes.
        write(&files[0].path(), b"from the file").expect("the file");
        assert_eq!(kernels_in(Some(&folder), "sm_90a").expect("kernels"), b"from the file");
        assert!(first.starts_with(b"\x7fELF"));
        fs::remove_dir_all(&folder).expect("the folder");
    }
}

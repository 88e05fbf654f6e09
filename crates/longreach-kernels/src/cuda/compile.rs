//! Own kernels: compiled by NVRTC for the device that is there, and kept on disk.

use super::error::Error;
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// The kernels' source.
const PARTS: &str = include_str!("../../kernels/parts.cu");

/// Machine code of the kernels for `arch` (`sm_90a`), and what the compiler said of registers and spills; nothing is
/// said of code that was on disk.
pub fn compile(arch: &str) -> Result<(Vec<u8>, String), Error> {
    let version = version()?;
    let kept = kept(arch, version);
    if let Some(code) = kept.as_ref().and_then(|path| std::fs::read(path).ok()) {
        return Ok((code, String::new()));
    }
    let (code, log) = compile_anew(arch)?;
    if let Some(path) = kept {
        keep(&path, &code);
    }
    Ok((code, log))
}

/// NVRTC's version.
fn version() -> Result<(i32, i32), Error> {
    // SAFETY: looks for a library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Absent {
            library: "libnvrtc.so.13",
            remedy: "`pip install nvidia-cuda-nvrtc` brings it; put its folder on LD_LIBRARY_PATH",
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; it writes two integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    Ok((major, minor))
}

/// Where code for `arch` is kept: under a name that changes with all that it depends on.
fn kept(arch: &str, version: (i32, i32)) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    let mut hasher = DefaultHasher::new();
    (PARTS, arch, version, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    Some(cache.join("longreach").join(format!("parts-{arch}-{:016x}.cubin", hasher.finish())))
}

/// Keeps `code`; where that fails, it is compiled again next time.
fn keep(path: &std::path::Path, code: &[u8]) {
    let Some(folder) = path.parent() else { return };
    // Beside it first: several processes may do this at once.
    let beside = folder.join(format!("{}.part", std::process::id()));
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&beside, code))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // What could not be written may not have been begun.
        let _ = std::fs::remove_file(beside);
    }
}

/// As [`compile`], with nothing taken from disk.
pub fn compile_anew(arch: &str) -> Result<(Vec<u8>, String), Error> {
    version()?;
    let program = Program::new()?;
    let options =
        [format!("--gpu-architecture={arch}"), "--ptxas-options=-v".to_owned(), "--std=c++17".to_owned()];
    let options = options.map(|option| CString::new(option).unwrap_or_default());
    let pointers = options.each_ref().map(|option| option.as_ptr());
    // SAFETY: the program is there, the options are terminated strings that outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    let log = program.log();
    if compiled != nvrtcResult::NVRTC_SUCCESS {
        return Err(Error::Compile { what: "parts.cu", arch: arch.to_owned(), log });
    }
    let mut len = 0;
    // SAFETY: the program has been compiled; one length is written.
    said("the code's size", arch, unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) })?;
    let mut code = vec![0u8; len];
    // SAFETY: as much room as the library has just asked for.
    said("the code", arch, unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) })?;
    Ok((code, log))
}

/// A program of NVRTC's, destroyed when it is dropped.
struct Program(nvrtcProgram);

impl Program {
    fn new() -> Result<Self, Error> {
        let source = CString::new(PARTS).unwrap_or_default();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the source is a terminated string, which is copied; there are no headers.
        said("a program", "any device", unsafe {
            sys::nvrtcCreateProgram(&mut program, source.as_ptr(), c"parts.cu".as_ptr(), 0, none, none)
        })?;
        Ok(Self(program))
    }

    fn log(&self) -> String {
        let mut len = 0;
        // SAFETY: one length is written.
        unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut len) };
        let mut log = vec![0u8; len.max(1)];
        // SAFETY: as much room as the library has just asked for.
        unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        CStr::from_bytes_until_nul(&log)
            .map_or_else(|_| String::new(), |log| log.to_string_lossy().into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once. Nothing is to be done about a failure.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn said(what: &'static str, arch: &str, result: nvrtcResult) -> Result<(), Error> {
    match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(Error::Compile { what, arch: arch.to_owned(), log: format!("{other:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_compile_for_every_device_without_a_spill() {
        for arch in ["sm_80", "sm_90a", "sm_100"] {
            match compile_anew(arch) {
                Err(Error::Absent { .. }) => {
                    eprintln!(
                        "SKIPPED the_kernels_compile_for_every_device_without_a_spill: NVRTC is not here"
                    );
                    return;
                }
                Err(error) => panic!("{error}"),
                Ok((code, log)) => {
                    assert!(
                        code.len() > 1000 && code.starts_with(b"\x7fELF"),
                        "{arch}: {} bytes",
                        code.len()
                    );
                    let spills = log.lines().filter(|line| line.contains("spill"));
                    let clean = |line: &str| line.contains("0 bytes spill stores, 0 bytes spill loads");
                    assert!(spills.clone().count() >= 8 && spills.clone().all(clean), "{arch}: {log}");
                }
            }
        }
    }
}

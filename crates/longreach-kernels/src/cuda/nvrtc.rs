//! The run-time compiler: CUDA C++ into machine code, on any machine that has the library, with or without a GPU.

use crate::error::Error;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};

/// What the compiler made of a source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code, as the driver loads it.
    pub cubin: Vec<u8>,
    /// What the assembler said: registers and spills of each kernel.
    pub log: String,
}

/// The compiler's version, major and minor. Fails where it is absent.
pub fn compiler_version() -> Result<(i32, i32), Error> {
    // SAFETY: looks for a library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Absent {
            library: "NVRTC",
            looked_for: "libnvrtc.so and libnvrtc.so.13",
            remedy: "`pip install nvidia-cuda-nvrtc` brings it; put its folder on LD_LIBRARY_PATH",
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there; it writes two numbers.
    said("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result())?;
    Ok((major, minor))
}

/// Compiles `source` for `arch`, such as `sm_90a`.
pub fn compile(source: &str, arch: &str) -> Result<Compiled, Error> {
    compiler_version()?;
    let failed = |reason: String| Error::Call { library: "NVRTC", call: "nvrtcCompileProgram", reason };
    let source = CString::new(source).map_err(|_| failed("the source has a zero byte".to_owned()))?;
    let program = Program(said("nvrtcCreateProgram", result::create_program(&source, None))?);
    let options = [&format!("--gpu-architecture={arch}"), "--std=c++17", "--ptxas-options=-v"];
    // SAFETY: the program was made above and lives.
    let outcome = unsafe { result::compile_program(program.0, &options) };
    // SAFETY: as above.
    let log = said("nvrtcGetProgramLog", unsafe { result::get_program_log(program.0) })?;
    let log: Vec<u8> = log.into_iter().map(|c| c as u8).collect();
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    if let Err(error) = outcome {
        return Err(failed(format!("{error} for {arch}: {}", log.trim())));
    }
    let mut len = 0;
    // SAFETY: as above; it writes one number.
    said("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) }.result())?;
    let mut cubin = vec![0u8; len];
    // SAFETY: as above; it writes as many bytes as it said.
    said("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) }.result())?;
    Ok(Compiled { cubin, log })
}

/// A program, destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once.
        let outcome = unsafe { result::destroy_program(self.0) };
        debug_assert!(outcome.is_ok());
    }
}

fn said<T>(call: &'static str, outcome: Result<T, result::NvrtcError>) -> Result<T, Error> {
    outcome.map_err(|error| Error::Call { library: "NVRTC", call, reason: error.to_string() })
}

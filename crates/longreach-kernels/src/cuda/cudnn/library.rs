//! The library: whether it is there, in which version, and its handles.

use super::api::{Api, api};
use crate::error::Error;
use cudarc::cudnn::sys::{cudnnHandle_t, cudnnStatus_t};
use cudarc::driver::CudaStream;
use std::ffi::CStr;
use std::sync::Arc;

/// The oldest version that is used: earlier ones have no backward, or a wrong one, for some shapes (9.10.0, 9.14.0,
/// and those up to 9.15.0 for key lengths that 128 does not divide).
pub const OLDEST: usize = 91501;

/// A handle of cuDNN, for one stream and one thread at a time.
pub struct Handle {
    raw: cudnnHandle_t,
    stream: Arc<CudaStream>,
    version: usize,
    api: &'static Api,
}

// SAFETY: a handle may be used by any thread, one at a time, which `&mut self` in `Plan::execute` sees to.
unsafe impl Send for Handle {}

impl Handle {
    /// A handle for work on `stream`. Fails where the library is absent or too old.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, Error> {
        let version = version()?;
        if version < OLDEST {
            return Err(Error::TooOld { found: text(version), oldest: text(OLDEST) });
        }
        let mut raw = std::ptr::null_mut();
        stream.context().bind_to_thread().map_err(crate::cuda::driver)?;
        let api = api()?;
        // SAFETY: the library writes one pointer.
        said("cudnnCreate", unsafe { (api.create)(&mut raw) })?;
        let handle = Self { raw, stream: stream.clone(), version, api };
        // SAFETY: the stream lives as long as the handle, which has a share of it.
        said("cudnnSetStream", unsafe { (api.set_stream)(raw, stream.cu_stream().cast()) })?;
        Ok(handle)
    }

    pub(super) fn api(&self) -> &'static Api {
        self.api
    }

    pub(super) fn raw(&self) -> cudnnHandle_t {
        self.raw
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The library's version, as people write it.
    pub fn version(&self) -> String {
        text(self.version)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let status = unsafe { (self.api.destroy)(self.raw) };
        debug_assert_eq!(status, cudnnStatus_t::CUDNN_STATUS_SUCCESS);
    }
}

/// The version of the library that is found here, as people write it. Fails where it is absent or too old.
pub fn found() -> Result<String, Error> {
    match version()? {
        version if version < OLDEST => Err(Error::TooOld { found: text(version), oldest: text(OLDEST) }),
        version => Ok(text(version)),
    }
}

/// The library's version: major * 10000 + minor * 100 + patch.
fn version() -> Result<usize, Error> {
    let api = api()?;
    // SAFETY: a function without condition.
    Ok(unsafe { (api.version)() })
}

fn text(version: usize) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}

/// What a call returned, with what the library says of it.
pub(super) fn said(call: &'static str, status: cudnnStatus_t) -> Result<(), Error> {
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut last = [0; 512];
    // SAFETY: the library writes a terminated string of at most that length.
    let last = unsafe {
        (api()?.last_error)(last.as_mut_ptr(), last.len());
        CStr::from_ptr(last.as_ptr())
    };
    let last = last.to_string_lossy();
    let reason = match last.trim() {
        "" => format!("{status:?}"),
        last => format!("{status:?}, {last}"),
    };
    Err(Error::Call { library: "cuDNN", call, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        assert_eq!(text(91900), "9.19.0");
        assert_eq!(text(OLDEST), "9.15.1");
    }

    #[test]
    fn a_machine_without_the_library_says_what_it_looked_for() {
        match version() {
            Ok(found) => assert!(found > 80000, "{found}"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("libcudnn.so.9") && text.contains("pip install"), "{text}");
            }
        }
    }
}

//! The library's functions, found by name at first use.
//!
//! The file with the major version in its name comes first: it is what Python's wheels bring, and what a program that has
//! loaded one of them gets again. A plain `libcudnn.so` may be an older one that the system has.

use crate::error::Error;
use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptor_t as Descriptor, cudnnBackendDescriptorType_t as Object, cudnnHandle_t as Handle,
    cudnnStatus_t as Status,
};
use libloading::Library;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

const FILES: [&str; 2] = ["libcudnn.so.9", "libcudnn.so"];

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are used, with C's types.
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// # Safety
            /// The library must be cuDNN, whose functions have these types in all 9.x.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller's promise.
                Ok(Self { $($field: *unsafe { library.get(concat!($name, "\0").as_bytes()) }?,)* })
            }
        }
    };
}

functions! {
    version = "cudnnGetVersion": fn() -> usize;
    last_error = "cudnnGetLastErrorString": fn(*mut c_char, usize);
    create = "cudnnCreate": fn(*mut Handle) -> Status;
    destroy = "cudnnDestroy": fn(Handle) -> Status;
    set_stream = "cudnnSetStream": fn(Handle, cudaStream_t) -> Status;
    create_descriptor = "cudnnBackendCreateDescriptor": fn(Object, *mut Descriptor) -> Status;
    destroy_descriptor = "cudnnBackendDestroyDescriptor": fn(Descriptor) -> Status;
    set_attribute = "cudnnBackendSetAttribute": fn(Descriptor, Name, Kind, i64, *const c_void) -> Status;
    get_attribute = "cudnnBackendGetAttribute": fn(Descriptor, Name, Kind, i64, *mut i64, *mut c_void) -> Status;
    finalize = "cudnnBackendFinalize": fn(Descriptor) -> Status;
    execute = "cudnnBackendExecute": fn(Handle, Descriptor, Descriptor) -> Status;
}

/// The functions; fails where the library is not on this machine. It may come later: a failure is not remembered.
pub(super) fn api() -> Result<&'static Api, Error> {
    static API: OnceLock<Api> = OnceLock::new();
    if let Some(api) = API.get() {
        return Ok(api);
    }
    // SAFETY: cuDNN's initialisation has no condition.
    let library = FILES.into_iter().find_map(|file| unsafe { Library::new(file) }.ok());
    // SAFETY: the library has cuDNN's name. It is never unloaded.
    let api = library.and_then(|library| unsafe { Api::of(Box::leak(Box::new(library))) }.ok());
    let api = api.ok_or(Error::Absent {
        library: "cuDNN",
        looked_for: "libcudnn.so.9 and libcudnn.so",
        remedy: "`pip install nvidia-cudnn-cu13` brings it; put its folder on LD_LIBRARY_PATH",
    })?;
    Ok(API.get_or_init(|| api))
}

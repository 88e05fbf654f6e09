//! Descriptors: the objects that cuDNN's graph interface is made of.

use super::error::Error;
use super::library::said;
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t, cudnnStatus_t,
};
use std::ffi::c_void;

/// A descriptor, destroyed when it is dropped.
#[derive(Debug)]
pub(super) struct Descriptor(cudnnBackendDescriptor_t);

// SAFETY: a finalized descriptor is read only, and cuDNN allows its use by any thread; before, it has one owner.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(super) fn new(kind: cudnnBackendDescriptorType_t) -> Result<Self, Error> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: the library is loaded, as a `Handle` exists; it writes one pointer.
        said("cudnnBackendCreateDescriptor", unsafe {
            sys::cudnnBackendCreateDescriptor(kind, &mut descriptor)
        })?;
        Ok(Self(descriptor))
    }

    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.0
    }

    /// Sets an attribute to `values`, whose type is what `kind` stands for.
    pub(super) fn set<T: Copy>(&self, name: Name, kind: Kind, values: &[T]) -> Result<(), Error> {
        let (count, start) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: `values` has `count` elements of the type, which the library copies.
        said("cudnnBackendSetAttribute", unsafe {
            sys::cudnnBackendSetAttribute(self.0, name, kind, count, start)
        })
    }

    pub(super) fn set_descriptors(&self, name: Name, values: &[&Descriptor]) -> Result<(), Error> {
        let raw: Vec<_> = values.iter().map(|value| value.0).collect();
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    pub(super) fn finalize(self) -> Result<Self, Error> {
        // SAFETY: a descriptor of this library.
        said("cudnnBackendFinalize", unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// Reads at most `values.len()` elements of an attribute; returns how many there were.
    pub(super) fn get<T: Copy>(&self, name: Name, kind: Kind, values: &mut [T]) -> Result<usize, Error> {
        let mut count = 0;
        let start = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: `values` has room for as many elements of the type as are asked for.
        said("cudnnBackendGetAttribute", unsafe {
            sys::cudnnBackendGetAttribute(self.0, name, kind, values.len() as i64, &mut count, start)
        })?;
        Ok(usize::try_from(count).unwrap_or(0).min(values.len()))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let status = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
        debug_assert_eq!(status, cudnnStatus_t::CUDNN_STATUS_SUCCESS);
    }
}

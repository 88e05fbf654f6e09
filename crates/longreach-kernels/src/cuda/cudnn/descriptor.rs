//! Descriptors: the objects that cuDNN's graph interface is made of.

use super::api::{Api, api};
use super::library::said;
use crate::error::Error;
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t, cudnnStatus_t,
};
use std::ffi::c_void;

/// A descriptor, destroyed when it is dropped.
pub(super) struct Descriptor {
    raw: cudnnBackendDescriptor_t,
    api: &'static Api,
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Descriptor").field(&self.raw).finish()
    }
}

// SAFETY: a finalized descriptor is read only, and cuDNN allows its use by any thread; before, it has one owner.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(super) fn new(kind: cudnnBackendDescriptorType_t) -> Result<Self, Error> {
        let (api, mut raw) = (api()?, std::ptr::null_mut());
        // SAFETY: the library writes one pointer.
        said("cudnnBackendCreateDescriptor", unsafe { (api.create_descriptor)(kind, &mut raw) })?;
        Ok(Self { raw, api })
    }

    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.raw
    }

    /// Sets an attribute to `values`, whose type is what `kind` stands for.
    pub(super) fn set<T: Copy>(&self, name: Name, kind: Kind, values: &[T]) -> Result<(), Error> {
        let (count, start) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: `values` has `count` elements of the type, which the library copies.
        said("cudnnBackendSetAttribute", unsafe {
            (self.api.set_attribute)(self.raw, name, kind, count, start)
        })
    }

    pub(super) fn set_descriptors(&self, name: Name, values: &[&Descriptor]) -> Result<(), Error> {
        let raw: Vec<_> = values.iter().map(|value| value.raw).collect();
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    pub(super) fn finalize(self) -> Result<Self, Error> {
        // SAFETY: a descriptor of this library.
        said("cudnnBackendFinalize", unsafe { (self.api.finalize)(self.raw) })?;
        Ok(self)
    }

    /// Reads at most `values.len()` elements of an attribute; returns how many there were.
    pub(super) fn get<T: Copy>(&self, name: Name, kind: Kind, values: &mut [T]) -> Result<usize, Error> {
        let mut count = 0;
        let start = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: `values` has room for as many elements of the type as are asked for.
        said("cudnnBackendGetAttribute", unsafe {
            (self.api.get_attribute)(self.raw, name, kind, values.len() as i64, &mut count, start)
        })?;
        Ok(usize::try_from(count).unwrap_or(0).min(values.len()))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let status = unsafe { (self.api.destroy_descriptor)(self.raw) };
        debug_assert_eq!(status, cudnnStatus_t::CUDNN_STATUS_SUCCESS);
    }
}

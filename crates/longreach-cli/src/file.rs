//! Safetensors files as they come: whole or broken, kind or hostile.

use crate::error::Error;
use crate::read::{self, unreadable};
use crate::tensors::Tensor;
use longreach_kernels::DType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors, tensor::Metadata};
use std::path::Path;
use std::sync::Arc;

/// An open safetensors file whose header has been checked.
#[derive(Debug)]
pub struct TensorFile {
    argument: &'static str,
    path: String,
    map: Arc<Mmap>,
    metadata: Metadata,
    /// Where the tensors' bytes begin.
    start: usize,
}

impl TensorFile {
    /// Opens the file that `argument` names.
    ///
    /// Fails when it cannot be read or is not a whole safetensors file.
    pub fn open(argument: &'static str, path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let bad = |why: String| Error::bad(argument, name.clone(), why);
        let file = read::open(argument, path)?;
        // SAFETY: the mapping is read only. That no other program shortens or rewrites the file while this
        // one runs is asked of the user, as of every program that maps its input; this program writes its
        // own outputs beside and renames them, so it never changes a mapped file itself.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| unreadable(argument, path, &error))?;
        let (header, metadata) = SafeTensors::read_metadata(&map)
            .map_err(|error| bad(format!("is not a whole safetensors file: {}", reason(&error))))?;
        Ok(Self { argument, path: name, map: Arc::new(map), metadata, start: header.saturating_add(8) })
    }

    /// An error about this file.
    pub fn bad(&self, why: impl Into<String>) -> Error {
        Error::bad(self.argument, self.path.clone(), why)
    }

    /// An entry of the metadata.
    pub fn entry(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Whether the file has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// The tensor `name`, whose dimensions are called `dims`.
    ///
    /// Fails when it is missing, has another rank or a type that attention does not take.
    pub fn tensor(&self, name: &str, dims: &str) -> Result<Tensor, Error> {
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| self.bad(format!("has no tensor {name}, expected {name} {dims}")))?;
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            other => {
                return Err(self.bad(format!("tensor {name} has dtype {other:?}, expected F32, F16 or BF16")));
            }
        };
        let shape: [usize; 4] = info.shape[..].try_into().map_err(|_| {
            self.bad(format!("tensor {name} has {} dimensions, expected 4 {dims}", info.shape.len()))
        })?;
        let (begin, end) = info.data_offsets;
        let bytes = self
            .start
            .checked_add(begin)
            .zip(self.start.checked_add(end))
            .map(|(begin, end)| begin..end)
            .filter(|bytes| self.map.get(bytes.clone()).is_some())
            .ok_or_else(|| self.bad(format!("tensor {name} reaches beyond the end of the file")))?;
        let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        if elements.and_then(|n| n.checked_mul(dtype.size())) != Some(bytes.len()) {
            return Err(self.bad(format!(
                "tensor {name} of shape {shape:?} and type {dtype} does not fill its {} bytes",
                bytes.len()
            )));
        }
        // A view counts in products of the dimensions, which can overflow even where one of them is 0.
        if shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1))).is_none() {
            return Err(self.bad(format!("tensor {name} has shape {shape:?}, too large for this machine")));
        }
        Ok(Tensor::mapped(Arc::clone(&self.map), bytes, dtype, shape))
    }
}

fn reason(error: &SafeTensorError) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => "it has fewer than 8 bytes".to_owned(),
        SafeTensorError::HeaderTooLarge => "its header is larger than 100 MB".to_owned(),
        SafeTensorError::InvalidHeaderLength => "its header is longer than the file".to_owned(),
        SafeTensorError::MetadataIncompleteBuffer => {
            "its tensors do not end where the file ends (truncated, or bytes behind them)".to_owned()
        }
        SafeTensorError::TensorInvalidInfo => "a tensor's shape does not fill its bytes".to_owned(),
        SafeTensorError::InvalidOffset(name) => {
            format!("the offsets of tensor {name} are not in order")
        }
        SafeTensorError::ValidationOverflow => "a tensor's size overflows".to_owned(),
        other => other.to_string(),
    }
}

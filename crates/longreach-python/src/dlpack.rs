//! Tensors of others, borrowed through DLPack capsules.

use crate::error::refused;
use half::{bf16, f16};
use longreach::{DType, Data, View};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::c_void;
use std::slice;

/// DLPack's number of memory of the CPU.
const CPU: i32 = 1;

// The structures of dlpack.h before version 1, which every framework still gives out when it is not asked for more.

#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_type: i32,
    _device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    _manager: *mut c_void,
    _deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A tensor `[batch, sequence, heads, dim]` that somebody else owns, for as long as its capsule lives.
pub struct Borrowed<'py> {
    memory: Memory,
    _capsule: Bound<'py, PyCapsule>,
}

/// Where such a tensor lies. Used only while its [`Borrowed`] is there.
#[derive(Clone, Copy)]
pub struct Memory {
    pub dtype: DType,
    pub shape: [usize; 4],
    pub strides: [usize; 4],
    /// Elements from the first to the last, or none.
    reach: usize,
    data: *mut c_void,
}

// SAFETY: an address and sizes; who uses them keeps the owner alive, whatever thread it runs on.
unsafe impl Send for Memory {}

impl<'py> Borrowed<'py> {
    /// The tensor in `capsule`, which errors call `name`; fails where it is no tensor on a CPU of a type that is supported.
    pub fn new(name: &str, capsule: &Bound<'py, PyAny>) -> PyResult<Self> {
        let capsule = capsule.cast::<PyCapsule>()?.clone();
        let managed = capsule.pointer_checked(Some(c"dltensor"))?.cast::<Managed>();
        // SAFETY: a capsule of that name holds a DLManagedTensor until it is consumed, which renames it.
        let managed = unsafe { managed.as_ref() };
        Ok(Self { memory: Memory::new(name, managed)?, _capsule: capsule })
    }

    /// Where it lies.
    pub fn memory(&self) -> Memory {
        self.memory
    }
}

impl Memory {
    fn new(name: &str, managed: &Managed) -> PyResult<Self> {
        if managed.device_type != CPU {
            return Err(refused(format!(
                "{name} is on a device of DLPack type {}: today this module takes CPU tensors only",
                managed.device_type
            )));
        }
        let dtype = match (managed.code, managed.bits, managed.lanes) {
            (2, 32, 1) => DType::F32,
            (2, 16, 1) => DType::F16,
            (4, 16, 1) => DType::Bf16,
            (code, bits, _) => {
                return Err(refused(format!(
                    "{name} has elements of {bits} bits (DLPack code {code}): float32, float16 and bfloat16 are \
                     supported, convert it"
                )));
            }
        };
        let ndim = usize::try_from(managed.ndim).unwrap_or(0);
        if ndim != 4 {
            return Err(refused(format!("{name} has {ndim} dimensions: it must have 4")));
        }
        // SAFETY: a DLTensor has `ndim` sizes.
        let sizes = unsafe { slice::from_raw_parts(managed.shape, 4) };
        let shape = whole(name, "sizes", sizes)?;
        let strides = if managed.strides.is_null() {
            // Null is row-major.
            let row = shape[2].saturating_mul(shape[3]);
            [shape[1].saturating_mul(row), row, shape[3], 1]
        } else {
            // SAFETY: and as many strides where it has any.
            whole(name, "strides", unsafe { slice::from_raw_parts(managed.strides, 4) })?
        };
        let last = (0..4).try_fold(0usize, |sum, axis| {
            sum.checked_add(shape[axis].saturating_sub(1).checked_mul(strides[axis])?)
        });
        let reach = if shape.contains(&0) { Some(0) } else { last.and_then(|last| last.checked_add(1)) };
        let reach =
            reach.filter(|reach| reach.checked_mul(dtype.size()).is_some_and(|n| n <= isize::MAX as usize));
        let Some(reach) = reach else {
            return Err(refused(format!(
                "{name} of shape {shape:?} and strides {strides:?} is beyond all memory"
            )));
        };
        let data = managed.data.wrapping_byte_add(managed.byte_offset as usize);
        if reach > 0 && !data.addr().is_multiple_of(dtype.size()) {
            return Err(refused(format!(
                "{name} is not aligned to its {} bytes an element: clone it",
                dtype.size()
            )));
        }
        Ok(Self { dtype, shape, strides, reach, data })
    }

    /// The tensor, to be read.
    ///
    /// # Safety
    /// Its [`Borrowed`] must outlive the view, and nobody may write the tensor meanwhile.
    pub unsafe fn view<'a>(&self) -> PyResult<View<'a>> {
        let data = match self.dtype {
            // SAFETY: as promised.
            DType::F32 => Data::F32(unsafe { self.elements::<f32>() }),
            // SAFETY: as promised.
            DType::F16 => Data::F16(unsafe { self.elements::<f16>() }),
            // SAFETY: as promised.
            DType::Bf16 => Data::Bf16(unsafe { self.elements::<bf16>() }),
        };
        View::strided(data, self.shape, self.strides).map_err(|error| refused(error.to_string()))
    }

    /// The elements from the first to the last, to be read.
    ///
    /// # Safety
    /// As for [`Memory::view`], and `T` must be the type.
    unsafe fn elements<'a, T>(&self) -> &'a [T] {
        match self.reach {
            0 => &[],
            // SAFETY: aligned and within memory as checked; it has so many elements, as its owner says.
            reach => unsafe { slice::from_raw_parts(self.data.cast(), reach) },
        }
    }

    /// The elements from the first to the last, to be written.
    ///
    /// # Safety
    /// Its [`Borrowed`] must outlive the slice, nobody else may use the tensor meanwhile, and `T` must be the type.
    pub unsafe fn elements_mut<'a, T>(&self) -> &'a mut [T] {
        match self.reach {
            0 => &mut [],
            // SAFETY: as in `elements`, and the caller is alone.
            reach => unsafe { slice::from_raw_parts_mut(self.data.cast(), reach) },
        }
    }
}

fn whole(name: &str, what: &str, given: &[i64]) -> PyResult<[usize; 4]> {
    let mut whole = [0; 4];
    for (whole, &given) in whole.iter_mut().zip(given) {
        *whole = usize::try_from(given)
            .map_err(|_| refused(format!("{name} has {what} below 0: flip it or clone it")))?;
    }
    Ok(whole)
}

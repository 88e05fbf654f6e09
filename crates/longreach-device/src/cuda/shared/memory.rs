//! Memory that several processes map.

use super::super::{Gpu, driver};
use crate::error::Error;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Memory of a GPU behind a file descriptor, which another process of the machine maps as well.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    file: OwnedFd,
    bytes: usize,
}

const KIND: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl SharedMemory {
    /// `bytes` zeros of `gpu`.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, Error> {
        gpu.make_current()?;
        let room = rounded(gpu, bytes)?;
        let mut handle = 0;
        // SAFETY: the handle is written to where it is asked for; the properties live through the call.
        unsafe { sys::cuMemCreate(&mut handle, room, &properties(gpu), 0) }
            .result()
            .map_err(driver("cuMemCreate"))?;
        let allocation = Allocation(handle);
        let mut file = -1i32;
        // SAFETY: a descriptor is written to where it is asked for.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut file).cast::<c_void>(), handle, KIND, 0) }
            .result()
            .map_err(driver("cuMemExportToShareableHandle"))?;
        // SAFETY: the driver has made it for this call.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let mapping = Mapping::new(gpu, room, allocation)?;
        // SAFETY: the mapping has as many bytes, and nobody else knows of it.
        unsafe { result::memset_d8_sync(mapping.address, 0, room) }.map_err(driver("cuMemsetD8"))?;
        gpu.context().default_stream().synchronize().map_err(driver("cuStreamSynchronize"))?;
        Ok(Self { mapping, file, bytes })
    }

    /// The memory of `bytes` bytes that another process has made, for this process's `gpu`.
    pub fn open(gpu: &Arc<Gpu>, file: OwnedFd, bytes: usize) -> Result<Self, Error> {
        gpu.make_current()?;
        let mut handle = 0;
        let given = file.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the descriptor is open; the driver refuses one that is not of such memory.
        unsafe { sys::cuMemImportFromShareableHandle(&mut handle, given, KIND) }
            .result()
            .map_err(driver("cuMemImportFromShareableHandle"))?;
        let mapping = Mapping::new(gpu, rounded(gpu, bytes)?, Allocation(handle))?;
        Ok(Self { mapping, file, bytes })
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.mapping.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What another process [opens](SharedMemory::open).
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: KIND,
        location: location(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.context().cu_device(),
    }
}

/// The size that memory for `bytes` bytes has: at least a byte, in steps of the GPU's.
fn rounded(gpu: &Gpu, bytes: usize) -> Result<usize, Error> {
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut step = 0;
    // SAFETY: the number is written to where it is asked for.
    unsafe { sys::cuMemGetAllocationGranularity(&mut step, &properties(gpu), option) }
        .result()
        .map_err(driver("cuMemGetAllocationGranularity"))?;
    let reason = || format!("{bytes} bytes in steps of {step} do not fit into 64 bits");
    bytes
        .max(1)
        .checked_next_multiple_of(step.max(1))
        .ok_or_else(|| Error::Driver { call: "cuMemCreate", reason: reason() })
}

/// Memory, which stays while it is mapped anywhere.
struct Allocation(sys::CUmemGenericAllocationHandle);

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made or imported by this process, and released once. An error leaves memory with the process.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Memory at addresses of this process.
#[derive(Debug)]
struct Mapping {
    gpu: Arc<Gpu>,
    address: u64,
    room: usize,
    /// Whether memory is there.
    mapped: bool,
}

impl Mapping {
    fn new(gpu: &Arc<Gpu>, room: usize, allocation: Allocation) -> Result<Self, Error> {
        let mut address = 0;
        // SAFETY: addresses are written to where they are asked for.
        unsafe { sys::cuMemAddressReserve(&mut address, room, 0, 0, 0) }
            .result()
            .map_err(driver("cuMemAddressReserve"))?;
        let mut mapping = Self { gpu: gpu.clone(), address, room, mapped: false };
        // SAFETY: the addresses are reserved and free, and the memory has that size or the driver refuses.
        unsafe { sys::cuMemMap(address, room, 0, allocation.0, 0) }.result().map_err(driver("cuMemMap"))?;
        mapping.mapped = true;
        let access = sys::CUmemAccessDesc {
            location: location(gpu),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses are mapped.
        unsafe { sys::cuMemSetAccess(address, room, &access, 1) }
            .result()
            .map_err(driver("cuMemSetAccess"))?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.gpu.make_current().is_err() {
            return;
        }
        // SAFETY: the addresses are this mapping's; work that uses them has kept whoever has the mapping. An error leaves
        // memory with the process.
        unsafe {
            if self.mapped {
                let _ = sys::cuMemUnmap(self.address, self.room);
            }
            let _ = sys::cuMemAddressFree(self.address, self.room);
        }
    }
}

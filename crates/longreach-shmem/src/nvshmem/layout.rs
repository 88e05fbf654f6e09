//! The library's structures, version 1, as its headers lay them out on 64-bit machines.

use std::ffi::c_void;
use std::mem::offset_of;

/// Versions are a number and the structure's size.
const fn version(number: i32, size: usize) -> i32 {
    (number << 16) + size as i32
}

/// `nvshmemx_uniqueid_t`.
#[repr(C)]
pub(super) struct UniqueId {
    version: i32,
    internal: [u8; 124],
}

impl UniqueId {
    pub(super) fn new() -> Self {
        Self { version: version(1, size_of::<Self>()), internal: [0; 124] }
    }

    pub(super) fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&self.version.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.internal);
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; 128]) -> Self {
        let mut id = Self::new();
        if let Some(version) = bytes.first_chunk() {
            id.version = i32::from_ne_bytes(*version);
        }
        id.internal.copy_from_slice(&bytes[4..]);
        id
    }
}

/// `nvshmemx_uniqueid_args_t`.
#[repr(C)]
struct UniqueIdArguments {
    version: i32,
    id: *const UniqueId,
    rank: i32,
    ranks: i32,
}

/// `nvshmemx_init_args_t`.
#[repr(C)]
struct InitArguments {
    version: i32,
    unique_id: UniqueIdArguments,
    padding: [u8; 96],
}

/// `nvshmemx_init_attr_t`.
#[repr(C)]
pub(super) struct InitAttributes {
    version: i32,
    mpi_comm: *mut c_void,
    arguments: InitArguments,
}

impl InitAttributes {
    /// What the headers' initialiser gives.
    pub(super) fn new() -> Self {
        Self {
            version: version(1, size_of::<Self>()),
            mpi_comm: std::ptr::null_mut(),
            arguments: InitArguments {
                version: version(1, size_of::<InitArguments>()),
                unique_id: UniqueIdArguments {
                    version: version(1, size_of::<UniqueIdArguments>()),
                    id: std::ptr::null(),
                    rank: -1,
                    ranks: -1,
                },
                padding: [0; 96],
            },
        }
    }
}

const _: () = {
    assert!(size_of::<UniqueId>() == 128);
    assert!(size_of::<UniqueIdArguments>() == 24);
    assert!(offset_of!(UniqueIdArguments, id) == 8 && offset_of!(UniqueIdArguments, rank) == 16);
    assert!(offset_of!(UniqueIdArguments, ranks) == 20);
    assert!(size_of::<InitArguments>() == 128);
    assert!(offset_of!(InitArguments, unique_id) == 8 && offset_of!(InitArguments, padding) == 32);
    assert!(size_of::<InitAttributes>() == 144);
    assert!(offset_of!(InitAttributes, mpi_comm) == 8 && offset_of!(InitAttributes, arguments) == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_headers() {
        let attributes = InitAttributes::new();
        let arguments = &attributes.arguments;
        let versions = [attributes.version, arguments.version, arguments.unique_id.version];
        assert_eq!(versions, [65680, 65664, 65560]);
        assert_eq!(UniqueId::new().version, 65664);
    }

    #[test]
    fn an_id_comes_back_from_its_bytes() {
        let mut id = UniqueId::new();
        id.internal = std::array::from_fn(|i| i as u8);
        assert_eq!(UniqueId::from_bytes(id.bytes()).bytes(), id.bytes());
    }
}

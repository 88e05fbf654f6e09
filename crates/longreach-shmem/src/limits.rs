//! Limits that the operating system sets for this process.

/// Bytes of address space that this process may have, where that is limited.
pub(crate) fn address_space() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return rustix::process::getrlimit(rustix::process::Resource::As).current;
    #[cfg(not(target_os = "linux"))]
    None
}

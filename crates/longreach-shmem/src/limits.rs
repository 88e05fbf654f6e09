//! Limits that the operating system sets for this process.

/// Bytes of address space that this process may have, where that is limited.
pub(crate) fn address_space() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return rustix::process::getrlimit(rustix::process::Resource::As).current;
    #[cfg(not(target_os = "linux"))]
    None
}

/// Bytes of memory that can still be had without swapping, of the machine and of the control group that this process is
/// in; none where neither tells.
///
/// Reserving more would not fail: it would end in the kernel killing somebody.
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
pub(crate) fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    // No limit is the word `max`, which is no number.
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, used)| most.saturating_sub(used));
    machine.into_iter().chain(group).min()
}

//! Cores, instructions, memory and limits.

use super::Lack;
use serde::Serialize;
use std::path::Path;

/// What the machine has, as far as this process may use it; none where the system does not tell.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The operating system.
    pub system: &'static str,
    /// The kind of processor.
    pub processor: &'static str,
    /// Cores that this process may use.
    pub cores: usize,
    /// The instructions that the kernels use here.
    pub simd: &'static str,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of it that are free or can be freed.
    pub available: Option<u64>,
    /// Bytes that this process's control group may have.
    pub group_memory: Option<u64>,
    /// What it may have of what.
    pub limits: Limits,
}

/// Limits of this process; none is no limit.
#[derive(Debug, Default, Serialize)]
pub struct Limits {
    /// Bytes of address space (`ulimit -v`).
    pub address_space: Option<u64>,
    /// Open files (`ulimit -n`).
    pub open_files: Option<u64>,
    /// Processes and threads of this user (`ulimit -u`).
    pub processes: Option<u64>,
    /// Bytes of a file, and of memory files too (`ulimit -f`).
    pub file_size: Option<u64>,
}

/// Open files that a run of a few PEs should find.
const FILES: u64 = 256;

impl Machine {
    /// As it is now.
    pub fn now() -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            system: std::env::consts::OS,
            processor: std::env::consts::ARCH,
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            simd: simd(),
            memory: kilobytes(&memory, "MemTotal:"),
            available: kilobytes(&memory, "MemAvailable:"),
            group_memory: group_memory(Path::new("/sys/fs/cgroup")),
            limits: Limits::now(),
        }
    }

    /// Limits that stop something.
    pub fn lacks(&self) -> Vec<Lack> {
        let mut lacks = Vec::new();
        let limits = &self.limits;
        if let Some(bytes) = limits.address_space {
            lacks.push(Lack {
                what: format!("address space: {bytes} bytes at most a process"),
                stops: "runs that need more, which end with status 3",
                enable: "ulimit -v unlimited".to_owned(),
            });
        }
        if let Some(bytes) = limits.file_size {
            lacks.push(Lack {
                what: format!("file size: {bytes} bytes at most, memory files too"),
                stops: "larger results, and --transport processes where a PE holds more",
                enable: "ulimit -f unlimited".to_owned(),
            });
        }
        if let Some(files) = limits.open_files.filter(|&files| files < FILES) {
            lacks.push(Lack {
                what: format!("open files: {files} at most"),
                stops: "runs and launches of more than a few PEs",
                enable: format!("ulimit -n {FILES}, or more for many PEs"),
            });
        }
        if self.simd == "none" {
            lacks.push(Lack {
                what: "vector instructions".to_owned(),
                stops: "speed: the kernels are many times slower without",
                enable: "a processor with AVX2 and FMA, AVX-512 or NEON".to_owned(),
            });
        }
        lacks
    }
}

impl Limits {
    #[cfg(unix)]
    fn now() -> Self {
        use rustix::process::{Resource, getrlimit};
        let current = |resource| getrlimit(resource).current;
        Self {
            address_space: current(Resource::As),
            open_files: current(Resource::Nofile),
            processes: current(Resource::Nproc),
            file_size: current(Resource::Fsize),
        }
    }

    #[cfg(not(unix))]
    fn now() -> Self {
        Self::default()
    }
}

/// What the kernels choose, best first: they look at run time, like this.
fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let wide =
            has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
        match (has!("avx2") && has!("fma"), wide) {
            (true, true) => "AVX-512",
            (true, false) => "AVX2 and FMA",
            (false, _) => "none",
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        if std::arch::is_aarch64_feature_detected!("neon") { "NEON" } else { "none" }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "none"
    }
}

/// A line of Linux's `/proc/meminfo`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest bound on memory of this process's control group (version 2) and those that it is in.
fn group_memory(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder = root.join(own);
    let mut least = None;
    while folder.starts_with(root) {
        // `max` is no bound, and the root has no such file.
        let bound = std::fs::read_to_string(folder.join("memory.max")).ok();
        let bound = bound.and_then(|text| text.trim().parse::<u64>().ok());
        least = least.into_iter().chain(bound).min();
        folder.pop();
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kilobytes() {
        let text = "MemTotal:       24596600 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(kilobytes(text, "MemTotal:"), Some(24_596_600 * 1024));
        assert_eq!(kilobytes(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(kilobytes(text, "SwapTotal:"), None);
    }

    #[test]
    fn a_limit_is_told_with_its_number() {
        let mut machine = Machine::now();
        machine.simd = "AVX-512";
        machine.limits = Limits { address_space: Some(12345), open_files: Some(16), ..Limits::default() };
        let lacks = machine.lacks();
        assert_eq!(lacks.len(), 2);
        assert!(lacks[0].what.contains("12345") && lacks[0].enable.contains("ulimit -v"));
        assert!(lacks[1].what.contains("16") && lacks[1].enable.contains("ulimit -n"));
    }
}

//! The findings as text.

use super::{Findings, Transport};
use crate::table::bytes;

impl Findings {
    /// For people.
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut text = format!("longreach {} on {}, {}\n", self.version, machine.system, machine.processor);
        let mut line = |name: &str, value: &str| {
            text.push_str(format!("{name:<11} {value}").trim_end());
            text.push('\n');
        };
        line("cores", &machine.cores.to_string());
        line("SIMD", machine.simd);
        let known = |size: Option<u64>| size.map_or("unknown".to_owned(), bytes);
        line(
            "memory",
            &format!("{}, of which {} available", known(machine.memory), known(machine.available)),
        );
        if let Some(group) = machine.group_memory {
            line("", &format!("{} at most for this control group", bytes(group)));
        }
        let limits = &machine.limits;
        let count = |limit: Option<u64>| limit.map_or("none".to_owned(), |limit| limit.to_string());
        let size = |limit: Option<u64>| limit.map_or("none".to_owned(), bytes);
        line("limits", &format!("open files (ulimit -n): {}", count(limits.open_files)));
        line("", &format!("processes (ulimit -u): {}", count(limits.processes)));
        line("", &format!("address space (ulimit -v): {}", size(limits.address_space)));
        line("", &format!("size of a file (ulimit -f): {}", size(limits.file_size)));
        line("transports", "");
        for (name, transport) in
            [("threads", &self.transports.threads), ("processes", &self.transports.processes)]
        {
            line(&format!("  {name}"), verdict(transport));
            for attempt in transport.tried.iter().filter(|_| name == "processes") {
                let outcome = attempt.error.as_deref().unwrap_or("works");
                line("", &format!("{}: {outcome}", attempt.name));
            }
        }
        let nvshmem = if self.gpus.nvshmem { "works" } else { "does not work" };
        line("  nvshmem", nvshmem);
        line("GPUs", if self.gpus.works { "work" } else { "do not work" });
        self.gpus.names.iter().enumerate().for_each(|(i, name)| line("", &format!("{i}: {name}")));
        for attempt in &self.gpus.tried {
            let version = self.gpus.versions.iter().find(|(name, _)| *name == attempt.name);
            let works = version.map_or("works", |(_, version)| version.as_str());
            line("", &format!("{}: {}", attempt.name, if attempt.works { works } else { "missing" }));
        }
        match self.launcher.name {
            None => line("launcher", "none seen; `longreach launch -n 2 -- PROGRAM` is one"),
            Some(name) => line("launcher", name),
        }
        for (name, value) in &self.launcher.variables {
            line("", &format!("{name}={value}"));
        }
        if self.missing.is_empty() {
            line("missing", "nothing");
        }
        for lack in &self.missing {
            line("missing", &lack.what);
            line("", &format!("stops: {}", lack.stops));
            line("", &format!("brought by: {}", lack.enable));
        }
        text
    }
}

fn verdict(transport: &Transport) -> &'static str {
    if transport.works { "work" } else { "do not work" }
}

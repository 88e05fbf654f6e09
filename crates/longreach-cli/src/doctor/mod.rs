//! `longreach doctor`: what this machine offers, what is missing, what that stops from working and what brings it.

mod gpu;
mod launcher;
mod machine;
mod processes;
mod report;

use crate::args::DoctorArgs;
use crate::error::{Error, status};
use crate::stdout;
use launcher::Launcher;
use machine::Machine;
use serde::Serialize;

/// Something that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// What longreach needs it for.
    pub name: &'static str,
    /// Whether it works.
    pub works: bool,
    /// Why not, where it does not.
    pub error: Option<String>,
    /// What brings it, where it does not work.
    pub enable: Option<&'static str>,
}

impl Attempt {
    /// From what trying it gave.
    pub fn of(name: &'static str, tried: Result<(), String>, enable: &'static str) -> Self {
        let enable = tried.is_err().then_some(enable);
        Self { name, works: tried.is_ok(), error: tried.err(), enable }
    }
}

/// Something that is missing.
#[derive(Clone, Debug, Serialize)]
pub struct Lack {
    /// What.
    pub what: String,
    /// What does not work without it.
    pub stops: &'static str,
    /// What brings it.
    pub enable: String,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Findings {
    version: &'static str,
    machine: Machine,
    transports: Transports,
    gpus: Gpus,
    launcher: Launcher,
    missing: Vec<Lack>,
}

#[derive(Debug, Serialize)]
struct Transports {
    threads: Transport,
    processes: Transport,
}

/// GPUs, and the libraries that they need.
#[derive(Debug, Serialize)]
struct Gpus {
    /// Whether `--device cuda` works.
    works: bool,
    /// Their names.
    names: Vec<String>,
    /// Whether `--transport nvshmem` may work.
    nvshmem: bool,
    tried: Vec<Attempt>,
    /// Releases of the libraries that were found.
    versions: Vec<(&'static str, String)>,
}

#[derive(Debug, Serialize)]
struct Transport {
    works: bool,
    tried: Vec<Attempt>,
}

impl Transport {
    fn of(tried: Vec<Attempt>) -> Self {
        Self { works: tried.iter().all(|attempt| attempt.works), tried }
    }
}

/// Looks at the machine and tells; returns the exit status.
pub fn doctor(args: DoctorArgs) -> Result<u8, Error> {
    let findings = Findings::now();
    let text = if args.json {
        let json = serde_json::to_string(&findings);
        json.map_err(|error| Error::Run(format!("the findings are no JSON: {error}")))? + "\n"
    } else {
        findings.text()
    };
    stdout::print(&text)?;
    let works = findings.transports.threads.works || findings.transports.processes.works;
    Ok(if works { status::DONE } else { status::RUN_FAILED })
}

impl Findings {
    fn now() -> Self {
        let machine = Machine::now();
        let thread = std::thread::Builder::new().spawn(|| ());
        let started = thread.map_err(|error| error.to_string()).and_then(|thread| {
            thread.join().map_err(|_| "a thread that does nothing has panicked".to_owned())
        });
        let threads = Transport::of(vec![Attempt::of("threads", started, "raise ulimit -u")]);
        let processes = Transport::of(processes::tried());
        let lacks = |transport: &Transport, stops: &'static str| -> Vec<Lack> {
            let lacking = transport.tried.iter().filter(|attempt| !attempt.works);
            lacking
                .map(|attempt| Lack {
                    what: format!(
                        "{}: {}",
                        attempt.name,
                        attempt.error.as_deref().unwrap_or("does not work")
                    ),
                    stops,
                    enable: attempt.enable.unwrap_or_default().to_owned(),
                })
                .collect()
        };
        let mut missing = lacks(&threads, "everything");
        missing.extend(lacks(&processes, "--transport processes and programs that call World::from_env"));
        missing.extend(machine.lacks());
        let gpus = Gpus::seen();
        missing.extend(gpus.lacks());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            transports: Transports { threads, processes },
            gpus,
            launcher: Launcher::seen(|name| std::env::var(name).ok()),
            missing,
        }
    }
}

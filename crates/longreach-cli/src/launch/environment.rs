//! What the processes of a launch learn about their world from the environment.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

/// One launch, as its processes see it.
#[derive(Debug)]
pub struct Environment {
    pes: usize,
    /// Tells this launch from every other one on the machine.
    job: String,
    /// Known to the processes of this launch only.
    token: String,
    /// A TCP port that was free a moment ago, for programs that meet over one.
    port: u16,
}

impl Environment {
    /// For a new launch of `pes` processes.
    pub fn new(pes: usize) -> io::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        Ok(Self { pes, job: random(8)?, token: random(16)?, port })
    }

    /// Gives `command` what the process of PE `pe` is to see.
    pub fn give(&self, command: &mut Command, pe: usize) {
        let (pe, pes) = (pe.to_string(), self.pes.to_string());
        for (names, value) in [
            (&["LONGREACH_PE", "RANK", "LOCAL_RANK"][..], &pe),
            (&["LONGREACH_PES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"], &pes),
            (&["LONGREACH_JOB"], &self.job),
            (&["LONGREACH_TOKEN"], &self.token),
            (&["MASTER_ADDR"], &Ipv4Addr::LOCALHOST.to_string()),
            (&["MASTER_PORT"], &self.port.to_string()),
        ] {
            names.iter().for_each(|name| {
                command.env(name, value);
            });
        }
        for (name, value) in NVSHMEM {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
    }
}

/// What NVSHMEM reads when it starts, where nothing else has been said: one machine, no multicast over NVLink, no NCCL.
const NVSHMEM: [(&str, &str); 3] =
    [("NVSHMEM_DISABLE_NVLS", "1"), ("NVSHMEM_REMOTE_TRANSPORT", "none"), ("NVSHMEM_DISABLE_NCCL", "1")];

/// So many random bytes, in hexadecimal.
fn random(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn seen(environment: &Environment, pe: usize) -> BTreeMap<String, String> {
        let mut command = Command::new("program");
        environment.give(&mut command, pe);
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
        command.get_envs().map(|(name, value)| (text(name), text(value.unwrap()))).collect()
    }

    #[test]
    fn all_processes_share_a_world_that_no_other_launch_has() {
        let (one, other) = (Environment::new(3).unwrap(), Environment::new(3).unwrap());
        let (mut first, mut second) = (seen(&one, 0), seen(&one, 2));
        for name in ["LONGREACH_PE", "RANK", "LOCAL_RANK"] {
            assert_eq!(
                (first.remove(name).unwrap(), second.remove(name).unwrap()),
                ("0".to_owned(), "2".to_owned())
            );
        }
        assert_eq!(first, second);
        for name in ["LONGREACH_PES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            assert_eq!(first[name], "3");
        }
        assert_eq!(first["MASTER_ADDR"], "127.0.0.1");
        assert!(first["MASTER_PORT"].parse::<u16>().unwrap() > 0);
        assert_eq!(first["LONGREACH_TOKEN"].len(), 32);
        let other = seen(&other, 0);
        assert!(first["LONGREACH_JOB"] != other["LONGREACH_JOB"]);
        assert!(first["LONGREACH_TOKEN"] != other["LONGREACH_TOKEN"]);
    }
}

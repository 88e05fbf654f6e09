//! What the environment of a process says of the world that it was started for.

use crate::error::Error;
use crate::world::DEFAULT_DEADLINE;
use std::time::Duration;

/// The name of the world that [`crate::World::from_env`] joins.
const WORLD: &str = "world";

/// How a process finds its world.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Tells jobs on a machine apart; the same on all PEs.
    pub job: String,
    /// The world's name; a job may have several.
    pub world: String,
    /// This process's PE, from 0.
    pub pe: usize,
    /// Number of PEs.
    pub pes: usize,
    /// A secret of the job, which PEs ask of each other where there is one.
    pub token: Option<String>,
    /// How long PEs wait for each other, here and, as the world's deadline, later.
    pub deadline: Duration,
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret does not go into logs.
        let token = self.token.as_ref().map(|_| "(secret)");
        let Self { job, world, pe, pes, deadline, .. } = self;
        write!(f, "Rendezvous {{ job: {job:?}, world: {world:?}, pe: {pe}, pes: {pes}, token: {token:?}, ")?;
        write!(f, "deadline: {deadline:?} }}")
    }
}

/// Where a launcher puts what.
struct Launcher {
    name: &'static str,
    pe: &'static str,
    pes: &'static str,
    /// PEs on this machine, or machines of the job: how to tell that a world spans several.
    here: Option<&'static str>,
    hosts: Option<&'static str>,
    /// What together names the job; the first is needed.
    job: &'static [&'static str],
}

const LAUNCHERS: [Launcher; 3] = [
    Launcher {
        name: "longreach launch",
        pe: "LONGREACH_PE",
        pes: "LONGREACH_PES",
        here: None,
        hosts: None,
        job: &["LONGREACH_JOB"],
    },
    Launcher {
        name: "torchrun",
        pe: "RANK",
        pes: "WORLD_SIZE",
        here: Some("LOCAL_WORLD_SIZE"),
        hosts: None,
        // A restarted job meets under another name than the one before.
        job: &["TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    },
    Launcher {
        name: "srun",
        pe: "SLURM_PROCID",
        pes: "SLURM_NTASKS",
        here: None,
        hosts: Some("SLURM_NNODES"),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl Rendezvous {
    /// What `longreach launch`, torchrun or srun, in this order, has put into the environment; LONGREACH_JOB,
    /// LONGREACH_TOKEN and LONGREACH_DEADLINE (seconds) count under each of them. Not collective.
    ///
    /// Fails where none has, where a variable is no number, and where the world spans several machines.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let launcher = LAUNCHERS.iter().find(|launcher| get(launcher.pe).is_some());
        let Some(launcher) = launcher else {
            return Err(Error::Environment(
                "this process was not started as a PE: none of LONGREACH_PE, RANK (torchrun) and SLURM_PROCID (srun) \
                 is set; start it with `longreach launch -n 2 -- PROGRAM`, or use World::threads"
                    .to_owned(),
            ));
        };
        let number = |name: &str| -> Result<usize, Error> {
            let value = get(name).ok_or_else(|| missing(launcher, name))?;
            value
                .parse()
                .map_err(|_| Error::Environment(format!("{name} is `{value}`: it must be a whole number")))
        };
        let (pe, pes) = (number(launcher.pe)?, number(launcher.pes)?);
        if pe >= pes {
            let Launcher { pe: rank, pes: size, .. } = launcher;
            return Err(Error::Environment(format!("{rank} is {pe} and {size} is {pes}: PEs count from 0")));
        }
        let here = launcher.here.filter(|name| get(name).is_some()).map(number).transpose()?;
        let hosts = launcher.hosts.filter(|name| get(name).is_some()).map(number).transpose()?;
        if here.is_some_and(|here| here != pes) || hosts.is_some_and(|hosts| hosts != 1) {
            let (name, value) = launcher.here.zip(here).or(launcher.hosts.zip(hosts)).unwrap_or(("", 0));
            return Err(Error::Environment(format!(
                "a world that spans machines was asked for ({name} is {value}, {} is {pes}): the transport `processes` \
                 works on one machine; start all PEs there",
                launcher.pes
            )));
        }
        let job = match get("LONGREACH_JOB") {
            Some(job) => job,
            None => {
                let first = launcher.job[0];
                get(first).ok_or_else(|| missing(launcher, first))?;
                launcher.job.iter().filter_map(|name| get(name)).collect::<Vec<_>>().join("-")
            }
        };
        let deadline = match get("LONGREACH_DEADLINE") {
            None => DEFAULT_DEADLINE,
            Some(value) => value
                .parse()
                .ok()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .filter(|deadline| !deadline.is_zero())
                .ok_or_else(|| {
                    Error::Environment(format!("LONGREACH_DEADLINE is `{value}`: it must be seconds above 0"))
                })?,
        };
        let token = get("LONGREACH_TOKEN");
        Ok(Self { job, world: WORLD.to_owned(), pe, pes, token, deadline })
    }

    pub(crate) fn error(&self, reason: String) -> Error {
        Error::Rendezvous { world: self.world.clone(), job: self.job.clone(), reason }
    }
}

fn missing(launcher: &Launcher, name: &str) -> Error {
    let Launcher { pe, name: by, .. } = launcher;
    let job = if launcher.job.contains(&name) { ", or LONGREACH_JOB," } else { "" };
    Error::Environment(format!("{pe} is set and {name}{job} is not: {by} sets both"))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Rendezvous, String> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Rendezvous::from_variables(get).map_err(|error| error.to_string())
    }

    #[test]
    fn each_launcher_is_understood() {
        let found =
            from(&[("LONGREACH_PE", "1"), ("LONGREACH_PES", "3"), ("LONGREACH_JOB", "j"), ("RANK", "7")]);
        let found = found.unwrap();
        assert_eq!((found.pe, found.pes, &*found.job), (1, 3, "j"));
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")];
        let found =
            from(&[&torchrun[..], &[("TORCHELASTIC_RUN_ID", "none"), ("MASTER_PORT", "29500")]].concat());
        assert_eq!((found.as_ref().unwrap().pe, &*found.unwrap().job), (1, "none-29500"));
        let srun =
            [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "3")];
        let found =
            from(&[&srun[..], &[("LONGREACH_DEADLINE", "2.5"), ("SLURM_NNODES", "1")]].concat()).unwrap();
        assert_eq!((found.pes, &*found.job, found.deadline), (4, "12-3", Duration::from_millis(2500)));
    }

    #[test]
    fn a_world_that_spans_machines_is_refused_by_name() {
        let torchrun =
            [("RANK", "1"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "x")];
        assert!(from(&torchrun).unwrap_err().contains("LOCAL_WORLD_SIZE is 4, WORLD_SIZE is 8"));
        let srun =
            [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "12"), ("SLURM_NNODES", "2")];
        assert!(from(&srun).unwrap_err().contains("SLURM_NNODES is 2, SLURM_NTASKS is 4"));
    }

    #[test]
    fn what_is_missing_or_no_number_is_named() {
        assert!(from(&[]).unwrap_err().contains("longreach launch -n 2"));
        assert!(from(&[("RANK", "0")]).unwrap_err().contains("WORLD_SIZE"));
        let no_job = [("RANK", "0"), ("WORLD_SIZE", "1")];
        assert!(from(&no_job).unwrap_err().contains("TORCHELASTIC_RUN_ID, or LONGREACH_JOB, is not"));
        let pe = |pe| [("LONGREACH_PE", pe), ("LONGREACH_PES", "2"), ("LONGREACH_JOB", "j")];
        assert!(from(&pe("one")).unwrap_err().contains("LONGREACH_PE is `one`"));
        assert!(from(&pe("2")).unwrap_err().contains("PEs count from 0"));
        let deadline = [&pe("1")[..], &[("LONGREACH_DEADLINE", "0")]].concat();
        assert!(from(&deadline).unwrap_err().contains("LONGREACH_DEADLINE is `0`"));
    }

    #[test]
    fn the_token_is_not_printed() {
        let mut found =
            from(&[("LONGREACH_PE", "0"), ("LONGREACH_PES", "1"), ("LONGREACH_JOB", "j")]).unwrap();
        found.token = Some("abc123".to_owned());
        assert!(!format!("{found:?}").contains("abc123"));
    }
}

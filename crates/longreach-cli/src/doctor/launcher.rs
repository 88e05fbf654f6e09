//! Whose child this process is, by its environment.

use serde::Serialize;
use std::collections::BTreeMap;

/// What launchers have put into the environment.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Launcher {
    /// The launcher whose variables a world would be made from.
    pub name: Option<&'static str>,
    /// All variables that launchers set, without secrets.
    pub variables: BTreeMap<&'static str, String>,
}

/// A launcher, the variable that tells that it was there, and its other ones.
const LAUNCHERS: [(&str, &str, &[&str]); 3] = [
    (
        "longreach launch",
        "LONGREACH_PE",
        &["LONGREACH_PES", "LONGREACH_JOB", "LONGREACH_TOKEN", "LONGREACH_DEADLINE"],
    ),
    (
        "torchrun",
        "RANK",
        &[
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
        ],
    ),
    ("srun", "SLURM_PROCID", &["SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_STEP_ID"]),
];

impl Launcher {
    /// From the values of environment variables.
    pub fn seen(get: impl Fn(&str) -> Option<String>) -> Self {
        let name = LAUNCHERS.into_iter().find(|(_, pe, _)| get(pe).is_some()).map(|(name, _, _)| name);
        let names = LAUNCHERS
            .into_iter()
            .flat_map(|(_, pe, others)| std::iter::once(pe).chain(others.iter().copied()));
        let shown = |name, value| if name == "LONGREACH_TOKEN" { "(secret)".to_owned() } else { value };
        let variables = names.filter_map(|name| Some((name, shown(name, get(name)?)))).collect();
        Self { name, variables }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_launcher_counts_and_secrets_are_not_shown() {
        let variables = [("SLURM_PROCID", "3"), ("RANK", "1"), ("LONGREACH_TOKEN", "abc"), ("HOME", "/")];
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let seen = Launcher::seen(get);
        assert_eq!(seen.name, Some("torchrun"));
        let shown: Vec<_> = seen.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(shown, [("LONGREACH_TOKEN", "(secret)"), ("RANK", "1"), ("SLURM_PROCID", "3")]);
        assert_eq!(Launcher::seen(|_| None), Launcher { name: None, variables: BTreeMap::new() });
    }
}

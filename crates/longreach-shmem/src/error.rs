//! The errors of this crate.

use crate::failure::Failure;
use crate::world::MOST_PES;
use std::sync::Arc;

/// An error of symmetric memory.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The world has failed; nothing works in it any more.
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// An error of the device.
    #[error("{0}")]
    Device(longreach_device::Error),
    /// A world of no PEs, or of too many, was asked for.
    #[error("a world of {pes} PEs was asked for: it has from 1 to {MOST_PES}")]
    WorldSize {
        /// PEs that were asked for.
        pes: usize,
    },
    /// A thread of a PE could not be started.
    #[error("the thread of PE {pe} could not be started: {reason}")]
    NoThread {
        /// The PE.
        pe: usize,
        /// What the operating system said.
        reason: String,
    },
    /// A world of that name exists in this process and is another one.
    #[error(
        "world `{name}` exists with {have} and was asked for again with {asked}: use another name, or ask for {have}"
    )]
    WorldExists {
        /// The name.
        name: String,
        /// What the existing world has: `4 PEs as threads`.
        have: String,
        /// What was asked for.
        asked: String,
    },
    /// The environment of this process does not make it a PE.
    #[error("{0}")]
    Environment(String),
    /// The PEs of a world did not come together.
    #[error("world `{world}` of job `{job}`: {reason}")]
    Rendezvous {
        /// The world's name.
        world: String,
        /// The job.
        job: String,
        /// What went wrong and what to do.
        reason: String,
    },
    /// The ranks of a team do not make one.
    #[error("team {ranks:?} of PE {pe} in a world of {pes}: {reason}")]
    BadTeam {
        /// The ranks given.
        ranks: Vec<usize>,
        /// The PE that asked.
        pe: usize,
        /// PEs of the world.
        pes: usize,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A collective call was made with values that differ between the PEs.
    #[error(
        "{what} differs between PEs: team rank {first} gave {first_value}, team rank {second} gave {second_value}; all must give the same"
    )]
    Disagreement {
        /// What was to be the same.
        what: &'static str,
        /// A team rank.
        first: usize,
        /// Its value.
        first_value: String,
        /// Another team rank.
        second: usize,
        /// Its value.
        second_value: String,
    },
    /// PEs of a team make collective calls in different orders.
    #[error(
        "PEs of a team are in different collective calls: team rank {first} in {first_call}, team rank {second} in {second_call}; all must make the same calls in the same order"
    )]
    OutOfStep {
        /// A team rank.
        first: usize,
        /// Its call.
        first_call: &'static str,
        /// Another team rank.
        second: usize,
        /// Its call.
        second_call: &'static str,
    },
    /// Symmetric memory could not be had.
    #[error(
        "team rank {rank} could not have {bytes} bytes of symmetric memory ({}): ask for less, or raise the limit",
        limit_text(*limit)
    )]
    OutOfMemory {
        /// The team rank that could not.
        rank: usize,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of address space that its process may have, where that is limited.
        limit: Option<u64>,
    },
    /// A PE could not have memory of its GPU, or not see another one's.
    #[error(
        "team rank {rank} could not have {bytes} bytes of its GPU's memory, or not reach those of the others: ask for less, or use GPUs that reach each other"
    )]
    OutOfGpuMemory {
        /// The team rank that could not.
        rank: usize,
        /// Bytes asked for.
        bytes: usize,
    },
    /// NVSHMEM is absent, refuses, or cannot be used as was asked.
    #[error("{0}")]
    Nvshmem(String),
    /// Memory of the host and of a GPU were given to one transfer, or a host's transfer memory of a GPU.
    #[error("{what}: give memory of the host to streams of the host, and of a GPU to its streams")]
    Place {
        /// What was given.
        what: &'static str,
    },
    /// A transfer reaches beyond a symmetric buffer, or beyond what it fills or sends.
    #[error("bytes {offset}..{offset}+{len} reach beyond the buffer's {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
        /// Bytes of the buffer or view.
        size: usize,
    },
    /// A world whose programs run already was to run others.
    #[error(
        "a run of this world of {pes} PEs goes on already: wait until it has ended, or make another world"
    )]
    Running {
        /// PEs of the world.
        pes: usize,
    },
    /// A team rank that the team does not have.
    #[error("team rank {rank} was named, the team has {size} PEs")]
    NoSuchRank {
        /// The rank given.
        rank: usize,
        /// PEs of the team.
        size: usize,
    },
}

impl From<longreach_device::Error> for Error {
    fn from(error: longreach_device::Error) -> Self {
        // A stream carries this crate's own errors as faults: give them back as what they were.
        if let longreach_device::Error::Fault(fault) = &error
            && let Some(own) = fault.downcast_ref::<Error>()
        {
            return own.clone();
        }
        Error::Device(error)
    }
}

impl Error {
    /// The error as what stops a stream.
    pub fn into_fault(self) -> longreach_device::Fault {
        Arc::new(self)
    }
}

fn limit_text(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("its process may have {limit} bytes of address space, ulimit -v"),
        None => "the machine has no more, no limit is set".to_owned(),
    }
}

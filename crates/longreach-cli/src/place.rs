//! Where the PEs of a run are: threads of this process, processes that it has to start, or it is one of them itself.

use crate::args::Transport;
use crate::error::Error;
use crate::failed;
use longreach::{Rendezvous, World};

/// PEs where nothing is said.
const USUAL_PES: usize = 2;

/// Where the PEs of a run are.
#[derive(Debug)]
pub enum Place {
    /// In this process.
    Threads,
    /// In processes that are not there yet.
    #[cfg(unix)]
    Children,
    /// This process is one.
    Pe(Rendezvous),
}

impl Place {
    /// What the arguments and the environment say; also the number of PEs.
    pub fn of(transport: Transport, pes: Option<usize>) -> Result<(Self, usize), Error> {
        if transport == Transport::Threads {
            return Ok((Self::Threads, pes.unwrap_or(USUAL_PES)));
        }
        if !cfg!(target_os = "linux") {
            let why = "needs Linux: use --transport threads";
            return Err(Error::bad("--transport", transport.name(), why));
        }
        if !launched() {
            return Self::children(pes.unwrap_or(USUAL_PES));
        }
        let rendezvous = Rendezvous::from_env().map_err(|error| Error::Usage(error.to_string()))?;
        match pes {
            Some(pes) if pes != rendezvous.pes => Err(Error::bad(
                "--pes",
                pes.to_string(),
                format!(
                    "this process was started as one of {} PEs: give that number, or leave --pes out",
                    rendezvous.pes
                ),
            )),
            _ => {
                let pes = rendezvous.pes;
                Ok((Self::Pe(rendezvous), pes))
            }
        }
    }

    #[cfg(unix)]
    fn children(pes: usize) -> Result<(Self, usize), Error> {
        Ok((Self::Children, pes))
    }

    #[cfg(not(unix))]
    fn children(pes: usize) -> Result<(Self, usize), Error> {
        Err(Error::bad("--pes", pes.to_string(), "processes can be started on Unix only"))
    }
}

/// The world that this process is a PE of. Collective.
pub fn join(rendezvous: &Rendezvous, json: bool) -> Result<World, Error> {
    World::join(rendezvous).or_else(|error| {
        if json && rendezvous.pe == 0 {
            failed::print_unmet(rendezvous.deadline)?;
        }
        Err(Error::Run(format!("PE {}: {error}", rendezvous.pe)))
    })
}

/// Whether a launcher has started this process as a PE. A batch script under Slurm has a rank too, but no step.
fn launched() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    set("LONGREACH_PE") || set("RANK") || (set("SLURM_PROCID") && set("SLURM_STEP_ID"))
}

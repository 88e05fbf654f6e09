//! `longreach launch`.

use super::{Cause, Launch, Output};
use crate::args::LaunchArgs;
use crate::error::{Error, complain, status};

/// Runs a program as several PEs; returns the status that theirs fold into.
pub fn launch(args: LaunchArgs) -> Result<u8, Error> {
    let mut command = args.command.into_iter();
    let program = command.next().ok_or_else(|| Error::Usage("launch needs a PROGRAM to start".to_owned()))?;
    let launch = Launch { program, arguments: command.collect(), pes: args.pes, output: Output::Prefixed };
    let outcome = launch.run()?;
    if let Some(cause) = outcome.cause {
        if let Cause::Pe { pe, end } = cause {
            complain(&format!("PE {pe} {end}"));
        }
        return Ok(cause.status());
    }
    match outcome.lost {
        Some(error) => Err(Error::Usage(format!("output of the PEs cannot be written: {error}"))),
        None => Ok(status::DONE),
    }
}

//! `longreach launch`.

use super::{Cause, End, Launch, Output};
use crate::args::LaunchArgs;
use crate::error::{Error, complain, status};
use signal_hook::consts::SIGPIPE;

/// Runs a program as several PEs; returns the status that theirs fold into.
pub fn launch(args: LaunchArgs) -> Result<u8, Error> {
    let mut command = args.command.into_iter();
    let program = command.next().ok_or_else(|| Error::Usage("launch needs a PROGRAM to start".to_owned()))?;
    let launch = Launch { program, arguments: command.collect(), pes: args.pes, output: Output::Prefixed };
    let outcome = launch.run()?;
    if let Some(error) = outcome.lost.filter(|_| outcome.cause.is_none_or(unheard)) {
        return Err(Error::Run(format!("output of the PEs cannot be written: {error}")));
    }
    let Some(cause) = outcome.cause else {
        return Ok(status::DONE);
    };
    if let Cause::Pe { pe, end } = cause {
        complain(&format!("PE {pe} {end}"));
    }
    Ok(cause.status())
}

/// Whether a PE has ended because its output was not taken any more.
fn unheard(cause: Cause) -> bool {
    matches!(cause, Cause::Pe { end: End::Killed(SIGPIPE), .. })
}

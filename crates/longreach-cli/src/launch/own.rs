//! This program as several PEs: what `--transport processes` does where no launcher has.

use super::{Cause, End, Launch, Outcome, Output};
use crate::error::{Error, complain, status};
use crate::failed;
use serde_json::{Value, json};

/// Runs this program with this process's arguments as `pes` PEs; returns the status of them together.
pub fn launch(pes: usize, json: bool) -> Result<u8, Error> {
    let program = std::env::current_exe()
        .map_err(|error| Error::Run(format!("this program cannot find itself to start PEs: {error}")))?;
    let arguments = std::env::args_os().skip(1).collect();
    let launch = Launch { program: program.into(), arguments, pes, output: Output::Inherited };
    let outcome = launch.run()?;
    let Some(cause) = outcome.cause else {
        return Ok(status::DONE);
    };
    let Cause::Pe { pe, end } = cause else {
        return Ok(cause.status());
    };
    if let Some(told) = told(&outcome) {
        return Ok(told);
    }
    complain(&format!("PE {pe} {end}"));
    if json {
        failed::print(untold(pe, end))?;
    }
    Ok(status::RUN_FAILED)
}

/// The status that a PE has ended with after it has told why.
fn told(outcome: &Outcome) -> Option<u8> {
    let told = [status::RUN_FAILED, status::BAD_REQUEST, status::CHECK_FAILED];
    told.into_iter().find(|&status| outcome.ends.contains(&End::Exited(i32::from(status))))
}

/// What is known of a failure that no PE has lived to tell.
fn untold(pe: usize, end: End) -> Value {
    let kind = if matches!(end, End::Killed(_)) { "died" } else { "left" };
    json!({
        "kind": kind,
        "pe": pe,
        "operation": null,
        "stage": null,
        "epoch": null,
        "waited_seconds": null,
        "reported_by": [],
    })
}

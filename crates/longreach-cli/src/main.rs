//! The program `longreach`: attention over several processing elements from the command line.

mod args;
mod attend;
mod bands_file;
mod bench;
mod check;
mod doctor;
mod documents;
mod dout;
mod error;
mod failed;
mod file;
mod inject;
mod input;
mod interrupt;
#[cfg(unix)]
mod launch;
mod mask;
mod measure;
#[cfg(unix)]
mod memory;
mod output;
mod part;
mod place;
mod progress;
mod read;
mod report;
mod request;
mod results;
mod run;
mod same_file;
mod stats;
mod stdout;
mod table;
mod tensors;
mod trace;
mod values;

use args::{BenchCommand, Command};
use error::Error;
use std::process::ExitCode;

#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

fn main() -> ExitCode {
    let status = program().unwrap_or_else(|error| {
        error::complain(&error.to_string());
        error.status()
    });
    if status == error::status::RUN_FAILED {
        leave_at_once(status);
    }
    ExitCode::from(status)
}

/// Ends a process whose run has failed: libraries of GPUs may be in the middle of calls that others never answer, and what
/// they would do at an ordinary exit they do beside those calls.
#[cfg(unix)]
fn leave_at_once(status: u8) {
    signal_hook::low_level::exit(i32::from(status));
}

#[cfg(not(unix))]
fn leave_at_once(_status: u8) {}

fn program() -> Result<u8, Error> {
    let cli = args::parse()?;
    interrupt::install()?;
    match cli.command {
        Command::Attend(args) => attend::attend(*args),
        Command::Doctor(args) => doctor::doctor(args),
        #[cfg(unix)]
        Command::Launch(args) => launch::command::launch(args),
        Command::Bench(BenchCommand::Get(args)) => bench::get::get(args),
        Command::Bench(BenchCommand::Attention(args)) => bench::attention::attention(args),
    }
}

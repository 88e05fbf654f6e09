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
mod file;
mod input;
mod interrupt;
#[cfg(unix)]
mod launch;
mod mask;
mod measure;
mod output;
mod progress;
mod report;
mod request;
mod results;
mod run;
mod stats;
mod stdout;
mod table;
mod tensors;
mod trace;
mod values;

use args::{BenchCommand, Command};
use error::Error;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match program() {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // Where stderr cannot be written, the exit status still tells it.
            let _ = writeln!(std::io::stderr().lock(), "{}", error.line());
            error.status()
        }
    }
}

fn program() -> Result<u8, Error> {
    let cli = args::parse()?;
    interrupt::install()?;
    match cli.command {
        Command::Attend(args) => attend::attend(*args),
        Command::Doctor(args) => doctor::doctor(args),
        #[cfg(unix)]
        Command::Launch(args) => launch::command::launch(args),
        Command::Bench(BenchCommand::Attention(args)) => bench::attention(args),
    }
}

//! The checks of this repository, one command each: `cargo xtask test`.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test(),
        _ => {
            eprintln!("error: `cargo xtask {}`: expected `test`", arguments.join(" "));
            ExitCode::from(2)
        }
    }
}

/// Runs every crate's tests, optimised.
fn test() -> ExitCode {
    let crates = ["longreach-plan", "longreach-device", "longreach-shmem", "longreach-kernels", "longreach"];
    let packages = crates.iter().flat_map(|name| ["--package", name]);
    run("cargo", ["test", "--release"].into_iter().chain(packages))
}

fn run<'a>(program: &str, arguments: impl Iterator<Item = &'a str>) -> ExitCode {
    let arguments: Vec<&str> = arguments.collect();
    eprintln!("$ {program} {}", arguments.join(" "));
    match Command::new(program).args(&arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: `{program}` could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

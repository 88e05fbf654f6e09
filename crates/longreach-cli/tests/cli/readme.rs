//! The commands that the README shows, as they stand there.

use crate::support::{Ran, ran};
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "cargo run --release -- ";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(repository().join("README.md")).unwrap()
}

/// The arguments of every command that runs the program, as a shell would read them.
fn commands(readme: &str) -> Vec<&str> {
    readme.lines().filter_map(|line| line.strip_prefix("    ")?.strip_prefix(PROGRAM)).collect()
}

/// Runs a command in the repository's root, by way of the program that is being tested.
fn run(arguments: &str) -> Ran {
    let script = format!("exec \"$0\" {arguments}");
    ran(Command::new("sh").current_dir(repository()).args(["-c", &script, env!("CARGO_BIN_EXE_longreach")]))
}

#[test]
fn every_command_does_what_is_said_of_it() {
    let readme = readme();
    let commands = commands(&readme);
    assert_eq!(commands.len(), readme.matches(PROGRAM).count(), "a command that is not on a line of its own");
    for command in &commands {
        let ran = run(command);
        let (status, part) = match command.split_whitespace().next() {
            _ if command.contains("--inject") => (3, ""),
            _ if command.contains("--check") => (0, "passed"),
            Some("launch") => (0, "[PE 3] I am PE 3 of 4\n"),
            Some("doctor") => (0, "transports"),
            _ => (0, "forward"),
        };
        assert_eq!(ran.status, Some(status), "{command}: {}", ran.stderr);
        assert!(ran.stdout.contains(part) && !ran.stdout.contains("FAILED"), "{command}: {}", ran.stdout);
    }
    for kind in ["attend", "launch", "doctor"] {
        assert!(commands.iter().any(|command| command.starts_with(kind)), "no {kind} in the README");
    }
}

/// The error that the README shows, line and object, is the one that its drill gives but for the time.
#[test]
fn the_drill_fails_as_is_shown() {
    let readme = readme();
    let drill = commands(&readme).into_iter().find(|command| command.contains("--inject")).unwrap();
    let ran = run(&format!("{drill} --json"));
    let shown = |start: &str| readme.lines().find_map(|line| line.strip_prefix("    ")?.strip_prefix(start));
    let line = shown("error: ").unwrap().rsplit_once(" after ").unwrap().0;
    let told: Vec<&str> = ran.stderr.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    assert!(told.iter().any(|told| told.starts_with(line)), "{line}\n{told:?}");
    let object = shown("{\"error\":").unwrap();
    let parse = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let (mut shown, mut given) = (parse(&format!("{{\"error\":{object}")), parse(&ran.stdout));
    for object in [&mut shown, &mut given] {
        assert!(object["error"]["waited_seconds"].take().is_number());
    }
    assert_eq!(shown, given);
}

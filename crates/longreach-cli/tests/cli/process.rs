//! Readers that go away, interrupts.

use crate::support::{Folder, program, sample, small, text};
use std::process::Stdio;

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let folder = Folder::new();
    let mut child = program()
        .args(["attend".as_ref(), folder.file("in", small("F32")).as_os_str(), "--json".as_ref()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_program_with_128_and_its_number() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        interrupted(signal, status);
    }
}

#[cfg(unix)]
fn interrupted(signal: &str, status: i32) {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new();
    let out = text(&folder.path("out"));
    let mut child = program()
        .args(["attend".as_ref(), sample().as_os_str(), "--backward".as_ref()])
        .args(["--repeat", "1000000", "--out", &out])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("PEs"), "{line}");
    let killed = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(status));
    assert!(output.stdout.is_empty());
    assert_eq!(folder.names(), [] as [&str; 0]);
}

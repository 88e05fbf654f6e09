//! What the system does not give: room for output, size of files, memory; and files that are none.

use crate::support::{Folder, Ran, attend, program, ran, sample, small, text};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// `longreach args...` under `ulimit limit`.
fn limited(limit: &str, args: &[&str]) -> Ran {
    let script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
    ran(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_longreach")]).args(args))
}

/// Exit 3, and one line of errors, which has all `parts`.
#[track_caller]
fn failed(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.status, Some(3), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let [line] = lines[..] else { panic!("not one line: {}", ran.stderr) };
    for part in parts {
        assert!(line.contains(part), "no '{part}' in: {line}");
    }
}

#[test]
fn an_output_that_is_full_is_a_failure_whatever_is_printed() {
    let folder = Folder::new();
    let input = text(&folder.file("in", small("F32")));
    for args in [
        &["attend", &input][..],
        &["attend", &input, "--json"],
        &["attend", &input, "--transport", "processes"],
        &["doctor"],
        &["doctor", "--json"],
        &["--help"],
        &["--version"],
        &["attend", "--help"],
        &["bench", "get", "-h"],
        &["help", "launch"],
        &["launch", "-n", "2", "--", "echo", "a line"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let ran = Ran { status: output.status.code(), stdout: String::new(), stderr };
        failed(&ran, &["cannot be written", "No space left on device"]);
    }
}

#[test]
fn help_that_nobody_reads_is_no_error() {
    for args in [&["--help"][..], &["attend", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program().args(args).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
    }
}

#[test]
fn a_file_larger_than_files_may_be_fails_and_leaves_nothing() {
    let folder = Folder::new();
    for (argument, more, kib) in [("--out", "--deterministic", 64), ("--trace", "--backward", 1)] {
        // Memory that processes share is made of files too.
        let input = text(&sample());
        let path = text(&folder.path("x"));
        let args = ["attend", &input, "--pes", "3", more, argument, &path];
        let ran = limited(&format!("-f {}", 2 * kib), &args);
        failed(&ran, &[argument, "cannot be written", "File too large", "ulimit -f"]);
        assert_eq!(folder.names(), [] as [&str; 0]);
    }
    let output = text(&folder.path("stdout"));
    let script = "ulimit -f 0; exec \"$0\" attend \"$1\" >\"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_longreach"), &text(&sample()), &output]);
    failed(&ran(&mut command), &["standard output cannot be written", "File too large"]);
}

#[test]
fn shared_memory_beyond_the_size_of_files_is_a_failure_of_the_run() {
    let ran = limited("-f 64", &["attend", &text(&sample()), "--transport", "processes", "--json"]);
    assert_eq!(ran.status, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.lines().any(|line| line.starts_with("error: PE ")), "{}", ran.stderr);
    assert!(!ran.stderr.contains("killed"), "{}", ran.stderr);
}

#[test]
fn a_file_that_does_not_fit_into_memory_is_not_bad_input() {
    let folder = Folder::new();
    let input = text(&folder.file("in", small("F32")));
    let large = |name: &str, bytes| {
        let path = folder.path(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        text(&path)
    };
    let (mapped, read) = (large("large", 1 << 30), large("bands", 200 << 20));
    for (argument, path, args) in [
        ("INPUT", &mapped, &["attend", &mapped][..]),
        ("--dout", &mapped, &["attend", &input, "--backward", "--dout", &mapped]),
        ("--bands", &read, &["attend", &input, "--bands", &read]),
    ] {
        let ran = limited("-v 150000", args);
        failed(&ran, &[&format!("{argument} {path}"), "cannot be read", "(this process may have 153600000"]);
    }
}

#[test]
fn open_files_that_are_not_to_be_had_are_not_bad_input() {
    let folder = Folder::new();
    let input = text(&folder.file("in", small("F32")));
    let mut short = 0;
    for files in 3..12 {
        for args in [&["attend", &input, "--transport", "processes"][..], &["attend", &input]] {
            let ran = limited(&format!("-n {files}"), args);
            // Where there are too few to start at all, the loader tells.
            let status = ran.status.unwrap();
            assert!([0, 3, 127].contains(&status), "{files} files, {args:?}: {status} {}", ran.stderr);
            if ran.stderr.contains("Too many open files") && status != 127 {
                assert_eq!(status, 3, "{}", ran.stderr);
                short += 1;
            }
        }
    }
    assert!(short > 0);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let link = folder.path("link");
    std::os::unix::fs::symlink(&fifo, &link).unwrap();
    for path in [&fifo, &link, &folder.path(""), Path::new("/dev/zero"), Path::new("/dev/null")] {
        let path = text(path);
        attend(path.as_ref(), &[]).refused(&["INPUT", &path, "is not a regular file"]);
        attend(&input, &["--bands", &path]).refused(&["--bands", &path, "is not a regular file"]);
        let dout = attend(&input, &["--backward", "--dout", &path]);
        dout.refused(&["--dout", &path, "is not a regular file"]);
    }
    for argument in ["--out", "--trace"] {
        let ran = attend(&input, &[argument, &text(&fifo)]);
        ran.refused(&[argument, "is not a regular file"]);
    }
}

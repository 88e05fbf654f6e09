//! `longreach launch`: what its processes see, what becomes of their output, signals and failures.

use crate::left::Mark;
use crate::support::{Ran, longreach, program};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn launch(pes: &str, script: &str) -> Ran {
    longreach(["launch", "-n", pes, "--", "sh", "-c", script])
}

/// A launch of `script` that runs, its mark, and its standard output.
fn started(pes: usize, script: &str) -> (Child, Mark, BufReader<std::process::ChildStdout>) {
    let mut command = program();
    let mark = Mark::on(&mut command);
    let pes = pes.to_string();
    command.args(["launch", "-n", &pes, "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, mark, out)
}

fn signal(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn every_pe_finds_its_world_in_the_environment() {
    let script =
        "echo $LONGREACH_PE/$LONGREACH_PES $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR
        echo ${#LONGREACH_JOB} ${#LONGREACH_TOKEN} $MASTER_PORT >&2";
    let ran = launch("3", script);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let expected = (0..3).map(|pe| format!("[PE {pe}] {pe}/3 {pe}/3 {pe}/3 127.0.0.1"));
    assert_eq!(lines(&ran.stdout), expected.collect::<Vec<_>>().iter().map(String::as_str).collect());
    let shared: BTreeSet<&str> = ran.stderr.lines().map(|line| line.split_once("] ").unwrap().1).collect();
    let [shared] = shared.into_iter().collect::<Vec<_>>()[..] else { panic!("{}", ran.stderr) };
    assert!(shared.starts_with("16 32 ") && shared.len() > 6, "{shared}");
}

#[test]
fn output_is_prefixed_in_whole_lines_whatever_pieces_it_comes_in() {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do printf 'a%s' $i; printf 'b\\n'; done; printf 'the end'";
    let ran = launch("4", script);
    let count = |line: &str| ran.stdout.lines().filter(|found| *found == line).count();
    for pe in 0..4 {
        for i in 1..=10 {
            assert_eq!(count(&format!("[PE {pe}] a{i}b")), 1, "{}", ran.stdout);
        }
        assert_eq!(count(&format!("[PE {pe}] the end")), 1, "{}", ran.stdout);
    }
    assert_eq!(ran.stdout.lines().count(), 44);
    assert_eq!(launch("1", "yes | head -c 20000000 | tr -d '\\n'").stdout.matches('y').count(), 10_000_000);
}

#[test]
fn arguments_and_standard_input_are_the_programs_own() {
    let args = ["launch", "-n", "2", "sh", "-c", "echo $0 $1; cat", "--json", "-n"];
    let ran = longreach(args);
    assert_eq!((ran.status, ran.stdout.matches("--json -n").count()), (Some(0), 2), "{}", ran.stdout);
}

#[test]
fn what_cannot_be_launched_is_refused() {
    let refused = |args: &[&str], parts: &[&str]| longreach([&["launch"], args].concat()).refused(parts);
    refused(&["-n", "0", "--", "true"], &["'0'", "--pes", "from 1 to 1024"]);
    refused(&["-n", "1025", "true"], &["'1025'", "from 1 to 1024"]);
    refused(&["-n", "two", "true"], &["'two'"]);
    refused(&["-n", "2"], &["PROGRAM"]);
    refused(&["true"], &["--pes"]);
    refused(&["-n", "3", "no-such-program"], &["PROGRAM no-such-program", "PATH"]);
    refused(&["-n", "3", "/etc/passwd"], &["PROGRAM /etc/passwd", "executable"]);
    refused(&["-n", "2", "--prefix", "true"], &["--prefix"]);
}

#[test]
fn the_first_failure_ends_the_rest_and_is_told_once() {
    for (failure, status, told) in [
        ("exit 7", 7, "error: PE 1 exited with status 7\n"),
        ("kill -KILL $$", 137, "error: PE 1 was killed by signal 9 (SIGKILL)\n"),
        ("kill -SEGV $$", 139, "error: PE 1 was killed by signal 11 (SIGSEGV)\n"),
    ] {
        let start = Instant::now();
        let (child, mark, _) = started(4, &format!("[ $RANK = 1 ] && {failure}; exec sleep 100"));
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(String::from_utf8_lossy(&output.stderr), told);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        mark.wait_for(0);
    }
}

#[test]
fn pes_that_fail_together_may_say_why_and_those_that_hang_are_killed() {
    // PE 0 fails at once, PEs 1 and 2 soon after it with something to say, PE 3 listens to nothing.
    let script = "trap '' TERM
        case $RANK in
            0) exit 3 ;;
            3) while :; do sleep 1; done ;;
            *) sleep 0.$RANK; echo why; exit 4 ;;
        esac";
    let (child, mark, mut out) = started(4, script);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: PE 0 exited with status 3\n");
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(lines(&text), ["[PE 1] why", "[PE 2] why"].into());
    mark.wait_for(0);
}

#[test]
fn what_a_pe_leaves_in_its_group_is_killed_though_all_went_well() {
    let (child, mark, mut out) = started(3, "sleep 100 & sleep 100 & echo done");
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(text.matches("done").count(), 3);
    mark.wait_for(0);
}

#[test]
fn signals_reach_every_pe() {
    for (sent, name, status) in [
        (Signal::INT, "INT", 130),
        (Signal::TERM, "TERM", 143),
        (Signal::HUP, "HUP", 129),
        (Signal::QUIT, "QUIT", 131),
        (Signal::USR1, "USR1", 0),
        (Signal::USR2, "USR2", 0),
    ] {
        let script =
            format!("trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.02; done");
        let (child, mark, mut out) = started(2, &script);
        let mut line = String::new();
        for _ in 0..2 {
            line.clear();
            out.read_line(&mut line).unwrap();
            assert!(line.ends_with("ready\n"), "{line}");
        }
        signal(child.id() as i32, sent);
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{name}");
        let expected = [format!("[PE 0] got {name}"), format!("[PE 1] got {name}")];
        assert_eq!(lines(&text), expected.iter().map(String::as_str).collect());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{name}");
        mark.wait_for(0);
    }
}

#[test]
fn an_interrupt_that_pes_ignore_is_repeated_as_a_kill() {
    let (child, mark, mut out) = started(2, "trap '' INT; echo ready; while :; do sleep 1; done");
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    out.read_line(&mut line).unwrap();
    let start = Instant::now();
    signal(child.id() as i32, Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!mark.processes().is_empty());
    signal(child.id() as i32, Signal::INT);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    mark.wait_for(0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_launcher_takes_its_pes_with_it() {
    let (mut child, mark, mut out) = started(5, "echo ready; exec sleep 100");
    let mut line = String::new();
    (0..5).for_each(|_| assert!(out.read_line(&mut line).unwrap() > 0));
    mark.wait_for(6);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    mark.wait_for(0);
}

#[test]
fn a_reader_that_goes_away_ends_the_pes_as_it_would_without_a_launcher() {
    let (child, mark, mut out) = started(2, "while :; do echo y; done");
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    mark.wait_for(0);
}

#[test]
fn many_pes_need_no_more_open_files_than_the_hard_limit() {
    let of = |limits: &str, pes: &str| {
        let script = format!("{limits}; exec \"$0\" launch -n {pes} -- sh -c 'ulimit -Sn'");
        let output = std::process::Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_longreach")])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (status, text) = of("ulimit -Sn 64", "100");
    assert_eq!(status, Some(0), "{text}");
    // The PEs have what the launcher was given.
    assert_eq!(text.lines().filter(|line| line.ends_with("] 64")).count(), 100, "{text}");
    let (status, text) = of("ulimit -n 128", "100");
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("264 open files") && text.contains("128"), "{text}");
}

//! PEs as processes: the same results as PEs as threads, however they were started, and nothing left behind.

use crate::left::Mark;
use crate::support::{Folder, Ran, attend, program, ran, sample, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn full() -> bool {
    std::env::var("LONGREACH_FULL").is_ok_and(|value| value == "1")
}

/// `longreach attend` on the sample with a mark.
fn marked(args: &[&str]) -> (Command, Mark) {
    let mut command = program();
    let mark = Mark::on(&mut command);
    command.args(["attend".as_ref(), sample().as_os_str()]).args(args);
    (command, mark)
}

/// What `args` compute over `transport`, as bytes of a file.
#[track_caller]
fn results(args: &[&str], transport: &str, out: &Path) -> Vec<u8> {
    let (mut command, mark) = marked(args);
    let ran = ran(command.args(["--transport", transport, "--out", &text(out)]));
    assert_eq!(ran.status, Some(0), "{args:?}: {}", ran.stderr);
    mark.nothing_left();
    std::fs::read(out).unwrap()
}

#[test]
fn results_are_bit_equal_between_transports() {
    let folder = Folder::new();
    let out = folder.path("out");
    for args in [
        &["--pes", "1", "--backward"][..],
        &["--pes", "2", "--backward", "--threads", "3", "--out-dtype", "f32"],
        &["--pes", "3", "--layout", "striped:16", "--backward", "--stages", "2"],
        &["--pes", "5", "--documents", "0,1,1,4,9,9,333,1024", "--backward", "--repeat", "2"],
        &["--pes", "4", "--layout", "contiguous", "--window", "255,0", "--backward"],
        &["--pes", "16", "--backward", "--mask", "full"],
    ] {
        assert!(results(args, "processes", &out) == results(args, "threads", &out), "{args:?}");
    }
}

#[test]
fn pe_0_alone_reports_checks_and_traces() {
    let folder = Folder::new();
    let trace = folder.path("trace");
    let args = ["--pes", "3", "--backward", "--check", "--json", "--transport", "processes"];
    let ran = attend(&sample(), &[&args[..], &["--trace", &text(&trace)]].concat());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["check"]["passed"], &report["transport"]), (&true.into(), &"processes".into()));
    assert_eq!(report["per_pe"].as_array().unwrap().len(), 3);
    assert_eq!(ran.stderr.matches("forward in float64:").count(), 1, "{}", ran.stderr);
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for pe in 0..3 {
        let mut gets = events.iter().filter(|event| event["pid"] == pe && event["name"] == "get");
        assert!(gets.next().is_some_and(|get| get["ts"].as_f64() > Some(0.0)), "PE {pe}");
    }
}

#[test]
fn the_same_program_many_times_in_a_row() {
    let folder = Folder::new();
    let out = folder.path("out");
    let args = ["--pes", "3", "--backward", "--threads", "1"];
    let expected = results(&args, "threads", &out);
    for number in 0..if full() { 200 } else { 20 } {
        assert!(results(&args, "processes", &out) == expected, "run {number}");
    }
}

#[test]
fn two_worlds_at_once_do_not_meet() {
    let folder = Folder::new();
    let (one, two) = (folder.path("one"), folder.path("two"));
    let args = |seed| ["--pes", "3", "--backward", "--repeat", "20", "--seed", seed];
    let (expected_one, expected_two) =
        (results(&args("1"), "threads", &one), results(&args("2"), "threads", &two));
    assert!(expected_one != expected_two);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| results(&args("1"), "processes", &one));
        assert!(results(&args("2"), "processes", &two) == expected_two);
        assert!(first.join().unwrap() == expected_one);
    });
}

/// Starts a PE with `variables` in place of a launcher's.
fn by_hand(args: &[&str], variables: &[(&str, &str)]) -> (Child, Mark) {
    let (mut command, mark) = marked(args);
    command.args(["--transport", "processes"]).envs(variables.iter().copied());
    (command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), mark)
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A name for a job of this test run.
fn job(name: &str) -> String {
    format!("test-{}-{name}", std::process::id())
}

#[test]
fn launchers_of_all_kinds_start_the_same_world() {
    let folder = Folder::new();
    let out = folder.path("out");
    let args = ["--backward", "--pes", "3"];
    let expected = results(&args, "threads", &out);
    let path = text(&out);
    let out_args = [&args[..], &["--out", &path]].concat();
    let job = job("kinds");
    for launcher in ["longreach", "torchrun", "srun"] {
        let pes: Vec<_> = (0..3)
            .map(|pe: usize| {
                let pe = pe.to_string();
                by_hand(
                    &out_args,
                    &match launcher {
                        "longreach" => [
                            ("LONGREACH_PE", &*pe),
                            ("LONGREACH_PES", "3"),
                            ("LONGREACH_JOB", &job),
                            ("RANK", "9"),
                        ],
                        "torchrun" => [
                            ("RANK", &*pe),
                            ("WORLD_SIZE", "3"),
                            ("TORCHELASTIC_RUN_ID", &job),
                            ("MASTER_PORT", "1"),
                        ],
                        _ => [
                            ("SLURM_PROCID", &*pe),
                            ("SLURM_NTASKS", "3"),
                            ("SLURM_JOB_ID", &job),
                            ("SLURM_STEP_ID", "0"),
                        ],
                    },
                )
            })
            .collect();
        for (child, mark) in pes {
            let ran = ended(child);
            assert_eq!(ran.status, Some(0), "{launcher}: {}", ran.stderr);
            mark.nothing_left();
        }
        assert!(std::fs::read(&out).unwrap() == expected, "{launcher}");
    }
    let mut launch = program();
    launch.args(["launch", "-n", "3", env!("CARGO_BIN_EXE_longreach"), "attend"]).arg(sample());
    let ran = ran(launch.args(&out_args).args(["--transport", "processes"]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.lines().all(|line| line.starts_with("[PE 0] ")), "{}", ran.stdout);
    assert!(std::fs::read(&out).unwrap() == expected, "launch");
}

#[test]
fn a_number_of_pes_other_than_the_launchers_is_refused() {
    for (variables, parts) in [
        (
            &[("LONGREACH_PE", "0"), ("LONGREACH_PES", "3"), ("LONGREACH_JOB", "x")][..],
            &["--pes 2", "3 PEs"][..],
        ),
        (&[("LONGREACH_PE", "zero"), ("LONGREACH_PES", "3")], &["LONGREACH_PE", "zero"]),
        (&[("RANK", "0")], &["RANK", "WORLD_SIZE"]),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "x")],
            &["LOCAL_WORLD_SIZE is 2"],
        ),
    ] {
        ended(by_hand(&["--pes", "2"], variables).0).refused(parts);
    }
}

#[test]
fn a_pe_that_starts_late_is_waited_for() {
    let job = job("late");
    let start = |pe| {
        let variables = [("LONGREACH_PE", pe), ("LONGREACH_PES", "3"), ("LONGREACH_JOB", &*job)];
        by_hand(&["--backward", "--check", "--deadline", "1"], &variables).0
    };
    // A late PE 0 is another case: the others have nobody to meet yet.
    for [first, second, late] in [["0", "1", "2"], ["1", "2", "0"]] {
        let (first, second) = (start(first), start(second));
        std::thread::sleep(Duration::from_secs(3));
        for child in [first, second, start(late)] {
            let ran = ended(child);
            assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        }
    }
}

#[test]
fn a_pe_that_never_comes_is_named() {
    let job = job("never");
    let variables = [
        ("LONGREACH_PE", "0"),
        ("LONGREACH_PES", "2"),
        ("LONGREACH_JOB", &*job),
        ("LONGREACH_DEADLINE", "0.5"),
    ];
    let ran = ended(by_hand(&["--json"], &variables).0);
    assert_eq!(ran.status, Some(3), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("error: PE 0: world") && ran.stderr.contains("[1] did not come"),
        "{}",
        ran.stderr
    );
    let object: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(object["error"]["operation"], "rendezvous");
}

#[test]
fn calls_that_differ_are_an_error_on_every_pe_that_names_both() {
    let job = job("differ");
    for (one, other, parts) in [
        (["--mask", "full"], ["--mask", "causal"], ["mask", "full", "causal"]),
        (["--scale", "0.5"], ["--scale", "0.25"], ["scale", "0.5", "0.25"]),
        (["--layout", "zigzag"], ["--layout", "contiguous"], ["layout", "zigzag", "contiguous"]),
    ] {
        let start = |pe, args: &[&str]| {
            by_hand(args, &[("LONGREACH_PE", pe), ("LONGREACH_PES", "2"), ("LONGREACH_JOB", &*job)]).0
        };
        let pes = [start("0", &one), start("1", &other)];
        for (pe, child) in pes.into_iter().enumerate() {
            let ran = ended(child);
            assert_eq!(ran.status, Some(3), "{}", ran.stderr);
            let lines: Vec<_> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
            let [line] = lines[..] else { panic!("{}", ran.stderr) };
            assert!(line.starts_with(&format!("error: PE {pe}: PE ")), "{line}");
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
    }
}

/// A run that goes on until something ends it, in the middle of its work.
fn endless(pes: usize, more: &[&str]) -> (Child, Mark, BufReader<std::process::ChildStderr>) {
    let pes = pes.to_string();
    let args =
        ["--pes", &pes, "--transport", "processes", "--backward", "--threads", "1", "--repeat", "1000000"];
    let (mut command, mark) = marked(&[&args[..], more].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(line.contains("PEs"), "{line}");
    std::thread::sleep(Duration::from_millis(200));
    (child, mark, err)
}

fn signal(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

#[test]
fn a_pe_that_is_killed_from_outside_is_named_by_all_others() {
    for victim in [0, 2] {
        let (child, mark, err) = endless(4, &["--json"]);
        signal(mark.pe(victim), Signal::KILL);
        let killed = Instant::now();
        let lines: Vec<String> =
            err.lines().map_while(Result::ok).filter(|line| line.starts_with("error")).collect();
        let output = child.wait_with_output().unwrap();
        assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        assert_eq!(output.status.code(), Some(3), "{lines:?}");
        assert_eq!(lines.len(), 3, "{lines:?}");
        for survivor in (0..4).filter(|pe| *pe != victim) {
            let start = format!("error: PE {survivor}: PE {victim} died during ");
            assert!(lines.iter().any(|line| line.starts_with(&start)), "{lines:?}");
        }
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["error"]["pe"], victim);
        assert_eq!(object["error"]["reported_by"].as_array().unwrap().len(), 3);
        mark.nothing_left();
    }
}

#[test]
fn a_pe_that_is_stopped_from_outside_has_stalled() {
    let (child, mark, err) = endless(3, &["--deadline", "1"]);
    signal(mark.pe(1), Signal::STOP);
    let lines: Vec<String> =
        err.lines().map_while(Result::ok).filter(|line| line.starts_with("error")).collect();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(3));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(": PE 1 stalled during ")), "{lines:?}");
    mark.nothing_left();
}

#[test]
fn want_of_memory_is_told_by_every_pe_with_bytes_and_limit() {
    let mut failed = 0;
    for transport in ["threads", "processes"] {
        for kib in
            [300_000, 170_000, 140_000, 100_000, 70_000, 50_000, 40_000, 30_000, 25_000, 20_000, 18_000]
        {
            let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            let mark = Mark::on(&mut command);
            command.args(["-c", &script, env!("CARGO_BIN_EXE_longreach"), "attend"]).arg(sample());
            command.args(["--pes", "3", "--transport", transport, "--backward", "--threads", "1", "--json"]);
            let ran = ran(&mut command);
            mark.nothing_left();
            let told = format!("{transport}, {kib} KiB: {:?} {}\n{}", ran.status, ran.stdout, ran.stderr);
            let object: Value = serde_json::from_str(&ran.stdout).expect(&told);
            if ran.status == Some(0) {
                assert!(object["error"].is_null(), "{told}");
                continue;
            }
            assert_eq!(ran.status, Some(3), "{told}");
            failed += 1;
            for pe in 0..3 {
                let start = format!("error: PE {pe}: PE ");
                let own: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with(&start)).collect();
                let [line] = own[..] else { panic!("PE {pe} of {told}") };
                assert!(line.contains(" bytes ") && line.contains("ulimit -v"), "{told}");
                assert!(line.contains(&(kib * 1024u64).to_string()), "{told}");
            }
            assert_eq!(object["error"]["reported_by"], Value::from(vec![0, 1, 2]), "{told}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn signals_end_a_run_cleanly() {
    let folder = Folder::new();
    let out = text(&folder.path("out"));
    for (sent, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (child, mark, err) = endless(3, &["--json", "--out", &out]);
        signal(child.id() as i32, sent);
        let lines: Vec<String> =
            err.lines().map_while(Result::ok).filter(|line| line.contains("error")).collect();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{lines:?}");
        assert_eq!((lines.len(), output.stdout.len()), (0, 0), "{lines:?}");
        mark.nothing_left();
        assert_eq!(folder.names(), [] as [&str; 0]);
    }
}

#[test]
fn a_killed_parent_takes_its_pes_with_it() {
    let (mut child, mark, _) = endless(3, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    mark.nothing_left();
}

#[test]
fn who_waits_for_one_that_waits_names_the_one_that_does_not() {
    // With contiguous parts and a window of a part, PE r waits for PE r - 1 alone, and at the end all wait for all.
    let drill = crate::drills::Drill {
        pes: 4,
        transport: "processes",
        kind: "stall",
        pe: 1,
        direction: "backward",
        stage: 1,
        seconds: Some(6.0),
    };
    drill.told(&drill.run(&["--json", "--layout", "contiguous", "--window", "255,0"]));
}

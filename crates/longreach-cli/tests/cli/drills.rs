//! Drills: faults at random places, each in a run of the whole program. Who survives names the faulty PE, once, in
//! time; and a fault that is none changes nothing.

use crate::left::Mark;
use crate::support::{Folder, Ran, program, ran, sample, text};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Seconds of the runs' `--deadline`.
const DEADLINE: f64 = 1.0;

/// A run that fails is over after so long, with much for a busy machine.
const OVER: Duration = Duration::from_secs(15);

/// A fault, and the run that it happens in.
#[derive(Debug)]
pub struct Drill {
    pub pes: usize,
    pub transport: &'static str,
    pub kind: &'static str,
    pub pe: usize,
    pub direction: &'static str,
    pub stage: usize,
    pub seconds: Option<f64>,
}

impl Drill {
    fn random(random: &mut StdRng) -> Self {
        let pes = random.random_range(2..=6);
        let mut pick = |of: &[&'static str]| of[random.random_range(0..of.len())];
        let kind = pick(&["kill", "kill", "fail", "stall", "stall", "short stall"]);
        let direction = pick(&["forward", "backward"]);
        let threads = kind != "kill" && pick(&["processes", "processes", "threads"]) == "threads";
        let seconds = match kind {
            "stall" => Some(random.random_range(4.0..8.0)),
            "short stall" => Some(random.random_range(0.0..0.3)),
            _ => None,
        };
        Self {
            pes,
            transport: if threads { "threads" } else { "processes" },
            kind: kind.trim_start_matches("short "),
            pe: random.random_range(0..pes),
            direction,
            stage: random.random_range(0..pes),
            seconds,
        }
    }

    /// Whether it is over before anybody minds.
    fn is_harmless(&self) -> bool {
        self.seconds.is_some_and(|seconds| seconds < DEADLINE)
    }

    fn fault(&self) -> String {
        let Self { kind, pe, direction, stage, seconds, .. } = self;
        let seconds = seconds.map(|seconds| format!(",seconds={seconds}")).unwrap_or_default();
        format!("{kind}@pe={pe},{direction},stage={stage}{seconds}")
    }

    /// Runs it; `more` are arguments beside its own.
    pub fn run(&self, more: &[&str]) -> Ran {
        let mut command = program();
        let mark = Mark::on(&mut command);
        command.args(["attend".as_ref(), sample().as_os_str()]);
        command.args(["--pes", &self.pes.to_string(), "--transport", self.transport, "--threads", "1"]);
        command
            .args(["--backward", "--deadline", &DEADLINE.to_string(), "--inject", &self.fault()])
            .args(more);
        let ran = ran(&mut command);
        mark.nothing_left();
        ran
    }

    /// What a run with `--json` has left says all that it should.
    #[track_caller]
    pub fn told(&self, ran: &Ran) {
        let told = format!("{self:?}: {}\n{}", ran.stdout, ran.stderr);
        assert_eq!(ran.status, Some(3), "{told}");
        let survivors: Vec<usize> = (0..self.pes).filter(|pe| *pe != self.pe).collect();
        let word = match self.kind {
            "kill" => "died",
            "stall" => "stalled",
            _ => "failed",
        };
        let lines: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(lines.len(), survivors.len(), "{told}");
        for survivor in &survivors {
            let start = format!("error: PE {survivor}: PE {} {word} during ", self.pe);
            let own = lines.iter().filter(|line| line.starts_with(&start));
            assert_eq!(own.count(), 1, "PE {survivor} of {told}");
        }
        let object: Value = serde_json::from_str(&ran.stdout).expect(&told);
        let error = &object["error"];
        assert_eq!((&error["kind"], &error["pe"]), (&word.into(), &self.pe.into()), "{told}");
        assert_eq!(error["reported_by"], Value::from(survivors), "{told}");
        assert!(
            error["operation"].is_string() && error["stage"].is_u64() && error["epoch"].is_u64(),
            "{told}"
        );
        let waited = error["waited_seconds"].as_f64().unwrap();
        if self.kind == "stall" {
            assert!((DEADLINE..=2.0 * DEADLINE).contains(&waited), "{told}");
        } else {
            // In the middle of a stage of a few milliseconds.
            assert!(waited < 2.0, "{told}");
        }
        if self.kind == "fail" {
            assert!(lines.iter().all(|line| line.ends_with(": injected failure")), "{told}");
        }
    }
}

/// Results of runs without a fault, by number of PEs.
#[derive(Default)]
struct Undisturbed(HashMap<usize, Vec<u8>>);

impl Undisturbed {
    fn of(&mut self, pes: usize, out: &PathBuf) -> &[u8] {
        self.0.entry(pes).or_insert_with(|| {
            let (count, stages) = (pes.to_string(), (pes - 1).to_string());
            let args = ["--pes", &count, "--stages", &stages, "--backward", "--out", &text(out)];
            assert_eq!(crate::support::attend(&sample(), &args).status, Some(0));
            std::fs::read(out).unwrap()
        })
    }
}

#[test]
fn faults_at_random_places() {
    let full = std::env::var("LONGREACH_FULL").is_ok_and(|value| value == "1");
    let folder = Folder::new();
    let out = folder.path("out");
    let mut undisturbed = Undisturbed::default();
    for seed in 0..if full { 300 } else { 40 } {
        let drill = Drill::random(&mut StdRng::seed_from_u64(seed));
        if drill.is_harmless() {
            let expected = undisturbed.of(drill.pes, &out).to_vec();
            let ran = drill.run(&["--out", &text(&out)]);
            assert_eq!(ran.status, Some(0), "{drill:?}: {}", ran.stderr);
            assert!(std::fs::read(&out).unwrap() == expected, "{drill:?}: other results");
        } else {
            let start = Instant::now();
            drill.told(&drill.run(&["--json"]));
            assert!(start.elapsed() < OVER, "{drill:?}: {:?}", start.elapsed());
        }
    }
}

#[test]
fn a_run_that_fails_writes_nothing() {
    let folder = Folder::new();
    let files = [text(&folder.path("out")), text(&folder.path("trace"))];
    for (kind, seconds) in [("kill", None), ("fail", None), ("stall", Some(5.0))] {
        let drill =
            Drill { pes: 3, transport: "processes", kind, pe: 1, direction: "backward", stage: 1, seconds };
        let ran = drill.run(&["--json", "--check", "--out", &files[0], "--trace", &files[1]]);
        drill.told(&ran);
        assert_eq!(folder.names(), [] as [&str; 0]);
    }
}

#[test]
fn many_pes_on_few_cores_name_the_faulty_one_too() {
    for kind in ["kill", "fail"] {
        let drill = Drill {
            pes: 16,
            transport: "processes",
            kind,
            pe: 11,
            direction: "forward",
            stage: 7,
            seconds: None,
        };
        drill.told(&drill.run(&["--json"]));
    }
}

#[test]
fn a_fault_in_a_world_of_one_is_told_all_the_same() {
    let of = |kind, transport| Drill {
        pes: 1,
        transport,
        kind,
        pe: 0,
        direction: "backward",
        stage: 0,
        seconds: None,
    };
    for transport in ["threads", "processes"] {
        let ran = of("fail", transport).run(&["--json"]);
        assert_eq!(ran.status, Some(3));
        assert!(ran.stderr.contains("error: PE 0: PE 0 failed during backward, stage 0"), "{}", ran.stderr);
        let object: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(object["error"]["reported_by"], Value::from(vec![0]));
    }
    let ran = of("kill", "processes").run(&["--json"]);
    assert_eq!(ran.status, Some(3));
    assert_eq!(ran.stderr.matches("error: ").count(), 1);
    assert!(ran.stderr.contains("error: PE 0 was killed by signal 9 (SIGKILL)"), "{}", ran.stderr);
    let object: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&object["error"]["kind"], &object["error"]["pe"]), (&"died".into(), &0.into()));
}

#[test]
fn faults_that_a_run_cannot_have_are_refused_before_anything_starts() {
    let folder = Folder::new();
    let out = text(&folder.path("out"));
    for (args, parts) in [
        (&["--pes", "3", "--inject", "fail@pe=3,forward,stage=0"][..], &["--inject", "PEs 0 to 2"][..]),
        (&["--pes", "3", "--inject", "fail@pe=0,forward,stage=3"], &["--inject", "stages 0 to 2"]),
        (&["--pes", "4", "--stages", "1", "--inject", "fail@pe=0,forward,stage=2"], &["stages 0 to 1"]),
        (&["--pes", "1", "--inject", "fail@pe=0,forward,stage=1"], &["stages 0 to 0"]),
        (&["--inject", "fail@pe=0,backward,stage=0"], &["--inject", "--backward"]),
        (&["--inject", "kill@pe=0,forward,stage=0"], &["--inject", "--transport processes"]),
        (&["--inject", "kill@pe=0,forward"], &["--inject", "stage=N is missing"]),
        (&["--inject", "stall@pe=0,forward,stage=0"], &["--inject", "seconds=X"]),
    ] {
        for transport in ["threads", "processes"] {
            if transport == "processes" && args.contains(&"kill@pe=0,forward,stage=0") {
                continue;
            }
            let args = [args, &["--transport", transport, "--out", &out]].concat();
            crate::support::attend(&sample(), &args).refused(parts);
        }
    }
    assert_eq!(folder.names(), [] as [&str; 0]);
}

//! How a request is run: memory bounds, numbers of PEs, what is counted, what is traced.

use crate::support::{Folder, attend, sample, small, text};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let ran = attend(&sample(), &[args, &["--threads", "1", "--json"]].concat());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_memory_bound_is_kept_or_refused_before_anything_starts() {
    let free = json(&["--pes", "4"]);
    let need = free["peak_bytes"].as_u64().unwrap();
    let bound = (need * 3 / 4).to_string();
    let bounded = json(&["--pes", "4", "--memory", &bound, "--check"]);
    assert!(bounded["peak_bytes"].as_u64().unwrap() <= need * 3 / 4);
    assert!(bounded["stages"].as_u64() > free["stages"].as_u64());
    let folder = Folder::new();
    let out = folder.path("out");
    let refused = |args: &[&str]| attend(&sample(), &[args, &["--out", &text(&out)]].concat());
    refused(&["--pes", "4", "--memory", "100KiB"]).refused(&["--memory 102400", "are needed"]);
    refused(&["--pes", "4", "--memory", &bound, "--stages", "1"]).refused(&[
        &format!("--memory {bound}"),
        "1 fetched stages",
        &need.to_string(),
    ]);
    assert_eq!(folder.names(), [] as [&str; 0]);
}

#[test]
fn rates_count_the_visible_pairs() {
    let report = json(&["--pes", "3", "--backward", "--window", "99,0"]);
    // The first 100 queries see 1, 2, ... 100 keys, the others 100.
    let pairs = (100 * 101 / 2 + 924 * 100) as f64;
    for (pass, flops) in [("forward", 2 * (64 + 64)), ("backward", 6 * 64 + 4 * 64)] {
        let of = |value: &Value, key: &str| value[pass][key].as_f64().unwrap();
        let counted = of(&report, "gflops") * of(&report, "seconds") * 1e9;
        let expected = pairs * 9.0 * f64::from(flops);
        assert!((counted / expected - 1.0).abs() < 1e-9, "{pass}: {counted}");
        let per_pe = report["per_pe"].as_array().unwrap();
        let sum: f64 = per_pe.iter().map(|pe| of(pe, "gflops") * of(pe, "seconds") * 1e9).sum();
        assert!((sum / expected - 1.0).abs() < 1e-9, "{pass}: {sum}");
        for pe in per_pe {
            assert!(of(pe, "seconds") <= of(&report, "seconds"));
        }
    }
    let tokens = report["per_pe"].as_array().unwrap().iter();
    let tokens: Vec<u64> = tokens.map(|pe| pe["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens.iter().sum::<u64>(), 1024);
}

#[test]
fn any_number_of_pes_meets_the_rule_on_odd_documents() {
    let documents = "0,1,1,4,9,9,333,1000..1024";
    assert_eq!(attend(&sample(), &["--documents", documents]).status, Some(2));
    for pes in ["1", "2", "5", "8"] {
        for documents in ["0,1,1,4,9,9,333,1024", "3..4,7..130,140..141,500..900"] {
            let report = json(&["--pes", pes, "--documents", documents, "--backward", "--check"]);
            assert_eq!(report["check"]["passed"], true, "{pes} PEs, {documents}");
        }
    }
}

#[test]
fn more_pes_than_tokens_leave_some_without() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let ran = attend(&input, &["--pes", "16", "--backward", "--check", "--json"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let idle = |pe: &&Value| pe["tokens"] == 0 && pe["forward"]["gflops"] == 0.0;
    assert_eq!(report["per_pe"].as_array().unwrap().iter().filter(idle).count(), 4);
}

#[test]
fn a_trace_tells_what_every_span_moved_or_computed() {
    let folder = Folder::new();
    let trace = folder.path("trace.json");
    let report = json(&["--pes", "2", "--backward", "--trace", &text(&trace)]);
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let sum = |pass: &str, name: &str, arg: &str| -> u64 {
        let named = events.iter().filter(|event| event["cat"] == pass && event["name"] == name);
        named.map(|event| event["args"][arg].as_u64().unwrap()).sum()
    };
    for (pass, flops) in [("forward", 4 * 64), ("backward", 10 * 64)] {
        assert_eq!(sum(pass, "get", "bytes"), report[pass]["bytes_fetched"]);
        assert_eq!(sum(pass, "tile", "flops"), 1024 * 1025 / 2 * 9 * flops, "{pass}");
    }
    assert_eq!(sum("backward", "put", "bytes"), report["backward"]["bytes_returned"]);
    let tracks: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name" && event["pid"] == 1)
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    for stream in ["comm", "compute", "return", "add"] {
        assert!(tracks.contains(&stream), "{tracks:?}");
    }
    let gets = || events.iter().filter(|event| event["name"] == "get");
    assert!(gets().all(|get| get["args"]["peer"] == 1 - get["pid"].as_u64().unwrap()));
    assert!(gets().all(|get| get["args"]["stage"].as_u64() > Some(0)));
}

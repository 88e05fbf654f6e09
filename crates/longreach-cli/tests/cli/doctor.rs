//! `longreach doctor`.

use crate::support::{longreach, program};
use serde_json::Value;

#[test]
fn what_works_here_is_told_and_nothing_fails() {
    let ran = longreach(["doctor"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    for part in ["cores", "SIMD", "ulimit -v", "threads", "processes", "launcher", "missing"] {
        assert!(ran.stdout.contains(part), "no {part}: {}", ran.stdout);
    }
    let ran = longreach(["doctor", "--json"]);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(ran.stdout.matches('\n').count(), 1);
    assert!(found["machine"]["cores"].as_u64() > Some(0));
    let threads = &found["transports"]["threads"];
    assert_eq!(threads["works"], true);
    for attempt in found["transports"]["processes"]["tried"].as_array().unwrap() {
        assert_eq!(attempt["works"], attempt["error"].is_null(), "{attempt}");
        assert_eq!(attempt["works"], attempt["enable"].is_null(), "{attempt}");
    }
}

#[cfg(unix)]
#[test]
fn limits_and_launchers_are_seen_and_secrets_are_not_shown() {
    let found = |script: &str| -> Value {
        let output = std::process::Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_longreach")])
            .env("LONGREACH_TOKEN", "very-secret")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("very-secret"));
        serde_json::from_str(text.trim_start_matches("[PE 0] ")).unwrap()
    };
    let limited = found("ulimit -v 4000000; exec \"$0\" doctor --json");
    assert_eq!(limited["machine"]["limits"]["address_space"], 4_000_000u64 * 1024);
    assert!(limited["missing"][0]["what"].as_str().unwrap().contains("4096000000"));
    assert!(limited["missing"][0]["enable"].as_str().unwrap().contains("ulimit -v"));
    let launched = found("exec \"$0\" launch -n 1 -- \"$0\" doctor --json");
    assert_eq!(launched["launcher"]["name"], "longreach launch");
    assert_eq!(launched["launcher"]["variables"]["LONGREACH_PES"], "1");
    assert_eq!(launched["launcher"]["variables"]["LONGREACH_TOKEN"], "(secret)");
}

#[test]
fn an_output_that_nobody_reads_is_no_error() {
    let mut child = program().args(["doctor"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

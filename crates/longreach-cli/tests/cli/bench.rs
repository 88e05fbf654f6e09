//! `longreach bench`: what it reports. How fast anything is, is for `bench/results` to say.

use crate::support::longreach;
use serde_json::Value;

#[test]
fn gets_are_reported_beside_copies_on_each_transport() {
    let transports: &[&str] =
        if cfg!(target_os = "linux") { &["threads", "processes"] } else { &["threads"] };
    for transport in transports {
        let ran = longreach(["bench", "get", "--transport", transport, "--json"]);
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        let object: Value = serde_json::from_str(&ran.stdout).expect("one object");
        assert_eq!(object["transport"], *transport);
        assert!(object["page_bytes"].as_u64() >= Some(4096));
        let sizes = object["sizes"].as_array().expect("sizes");
        let bytes: Vec<u64> = sizes.iter().filter_map(|size| size["bytes"].as_u64()).collect();
        assert_eq!(bytes, (0..8).map(|power| 4096 << (2 * power)).collect::<Vec<u64>>());
        for size in sizes {
            let [get, copy, ratio] =
                ["get_gbps", "copy_gbps", "ratio"].map(|key| size[key].as_f64().unwrap());
            assert!(get > 0.0 && copy > 0.0 && ratio > 0.0 && ratio.is_finite(), "{size}");
        }
        let signal = &object["signal_round_trip_us"];
        assert!(signal["median"].as_f64() > Some(0.0) && signal["p99"].as_f64() >= signal["median"].as_f64());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn gets_are_between_two_pes() {
    let bench = [env!("CARGO_BIN_EXE_longreach"), "bench", "get", "--transport", "processes"];
    let ran = longreach([&["launch", "-n", "3", "--"], &bench[..]].concat());
    assert_eq!((ran.status, &*ran.stdout), (Some(2), ""), "{}", ran.stderr);
    let why = "error: --transport processes: a get is between 2 PEs, and this process was started as one of 3: start 2";
    assert!(ran.stderr.lines().any(|line| line.ends_with(why)), "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_pe_that_dies_is_named_by_the_other() {
    use crate::left::Mark;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let mut command = crate::support::program();
    let mark = Mark::on(&mut command);
    command.args(["bench", "get", "--transport", "processes", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    mark.wait_for(3);
    // What it copies from: it has been in the world since before.
    let maps = format!("/proc/{}/maps", mark.pe(0));
    let begin = Instant::now();
    while !std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("longreach bench")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "PE 0 has not begun");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_raw(mark.pe(1)).unwrap(), Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("error: PE 0: PE 1 died during ") && stderr.lines().count() == 1, "{stderr}");
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(object["error"]["pe"], 1);
    assert_eq!(object["error"]["reported_by"], serde_json::json!([0]));
    mark.nothing_left();
}

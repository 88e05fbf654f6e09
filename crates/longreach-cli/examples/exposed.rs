//! Shows that communication hides behind computation: `exposed PROGRAM INPUT.safetensors`.
//!
//! Runs `PROGRAM attend` on two PEs with one compute thread each, forward and backward. Fails unless the compute
//! stream is idle for less than a twentieth of each pass and gets run while tiles of the same PE do. `scripts/exposed`
//! builds both programs and writes what a record needs beside the numbers.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Most of a pass that may be exposed.
const MOST_EXPOSED: f64 = 0.05;
const PES: usize = 2;
/// Where every core computes, a get often takes a core between two tiles: only many gets tell.
const RUNS: usize = 5;
/// Four stages, because two are fetched at once when a call begins, perhaps before its first tile: the others can
/// only be fetched when a stage has been computed.
const ARGS: [&str; 8] = ["--pes", "2", "--threads", "1", "--stages", "4", "--backward", "--json"];

fn main() -> ExitCode {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [program, input] => match exposed(program, Path::new(input)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: exposed PROGRAM INPUT.safetensors");
            ExitCode::from(2)
        }
    }
}

fn exposed(program: &str, input: &Path) -> Result<(), String> {
    let runs = (0..RUNS).map(|_| run(program, input)).collect::<Result<Vec<_>, _>>()?;
    let (report, _) = &runs[0];
    // Where the file lies is nobody's business.
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    println!("    longreach attend {name} {}\n", ARGS.join(" "));
    println!(
        "{} tokens, heads {}/{}, dim {}, {}, mask {}, layout {}, {} fetched stages; medians of {RUNS} runs\n",
        report["q_len"],
        report["q_heads"],
        report["kv_heads"],
        report["head_dim"],
        text(&report["dtype"])?,
        text(&report["mask"])?,
        text(&report["layout"])?,
        report["stages"]
    );
    println!("| pass | seconds | compute | comm | exposed | of the pass | GFLOP/s |");
    println!("|---|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    for pass in ["forward", "backward"] {
        let of = |key: &str| {
            let values = runs.iter().map(|(report, _)| number(&report[pass][key]));
            values.collect::<Result<Vec<_>, _>>().map(middle)
        };
        let shares = runs.iter().map(|(report, _)| {
            let (exposed, seconds) = (&report[pass]["exposed_seconds"], &report[pass]["seconds"]);
            Ok(number(exposed)? / number(seconds)?)
        });
        let share = middle(shares.collect::<Result<_, String>>()?);
        println!(
            "| {pass} | {:.4} | {:.4} | {:.4} | {:.4} | {:.2} % | {:.0} |",
            of("seconds")?,
            of("compute_seconds")?,
            of("comm_seconds")?,
            of("exposed_seconds")?,
            share * 100.0,
            of("gflops")?
        );
        if share.is_nan() || share >= MOST_EXPOSED {
            let percent = MOST_EXPOSED * 100.0;
            wrong.push(format!("{pass}: not under {percent} % exposed"));
        }
    }
    println!("\n| pass | PE | gets | that run while a tile does | time of gets | of that under tiles |");
    println!("|---|---|---|---|---|---|");
    for pass in ["forward", "backward"] {
        let mut under_tiles = 0;
        for pe in 0..PES {
            let mut gets = Vec::new();
            for (_, trace) in &runs {
                let tiles = spans(trace, pass, pe, "tile")?;
                let get = |get: (f64, f64)| (get.1 - get.0, covered(get, &tiles));
                gets.extend(spans(trace, pass, pe, "get")?.into_iter().map(get));
            }
            let under = gets.iter().filter(|(_, hidden)| *hidden > 0.0).count();
            let (time, hidden) =
                gets.iter().fold((0.0, 0.0), |(a, b), (time, hidden)| (a + time, b + hidden));
            println!(
                "| {pass} | {pe} | {} | {under} | {:.2} ms | {:.0} % |",
                gets.len(),
                time * 1e-3,
                hidden / time * 100.0
            );
            under_tiles += under;
        }
        if under_tiles == 0 {
            wrong.push(format!("{pass}: no get while a tile of the same PE runs"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("; "))
}

/// One run's report and trace.
fn run(program: &str, input: &Path) -> Result<(Value, Value), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let trace = folder.path().join("trace.json");
    let output = Command::new(program)
        .arg("attend")
        .arg(input)
        .args(ARGS)
        .arg("--trace")
        .arg(&trace)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} ended with {}", output.status));
    }
    let json = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string());
    let trace = std::fs::read(&trace).map_err(|error| error.to_string())?;
    Ok((json(&output.stdout)?, json(&trace)?))
}

/// The middle one of an odd number of values.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Start and end of what PE `pe` did under that name, in microseconds.
fn spans(trace: &Value, pass: &str, pe: usize, name: &str) -> Result<Vec<(f64, f64)>, String> {
    let events = trace["traceEvents"].as_array().ok_or("the trace has no events")?;
    events
        .iter()
        .filter(|event| event["ph"] == "X" && event["name"] == name)
        .filter(|event| event["pid"] == pe && event["cat"] == pass)
        .map(|event| {
            let start = number(&event["ts"])?;
            Ok((start, start + number(&event["dur"])?))
        })
        .collect()
}

/// How much of `span` lies in `others`, which are those of one stream: they do not overlap.
fn covered(span: (f64, f64), others: &[(f64, f64)]) -> f64 {
    others.iter().map(|other| (span.1.min(other.1) - span.0.max(other.0)).max(0.0)).sum()
}

fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("expected a number, found {value}"))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a text, found {value}"))
}

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
/// Four stages, because two are fetched at once when a call begins, perhaps before its first tile: the others can
/// only be fetched when a stage has been computed.
const ARGS: [&str; 10] = [
    "--pes",
    "2",
    "--threads",
    "1",
    "--stages",
    "4",
    "--backward",
    "--repeat",
    "5",
    "--json",
];

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
    let report: Value = json(&output.stdout)?;
    let trace: Value = json(&std::fs::read(&trace).map_err(|error| error.to_string())?)?;

    // Where the file lies is nobody's business.
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    println!("    longreach attend {name} {}\n", ARGS.join(" "));
    println!(
        "{} tokens, heads {}/{}, dim {}, {}, mask {}, layout {}, {} fetched stages\n",
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
        let of = |key: &str| number(&report[pass][key]);
        let (seconds, exposed) = (of("seconds")?, of("exposed_seconds")?);
        let share = exposed / seconds;
        println!(
            "| {pass} | {seconds:.4} | {:.4} | {:.4} | {exposed:.4} | {:.2} % | {:.0} |",
            of("compute_seconds")?,
            of("comm_seconds")?,
            share * 100.0,
            of("gflops")?
        );
        if share.is_nan() || share >= MOST_EXPOSED {
            let percent = MOST_EXPOSED * 100.0;
            wrong.push(format!("{pass}: not under {percent} % exposed"));
        }
    }
    println!("\n| pass | PE | gets | get time | of that while a tile runs |");
    println!("|---|---|---|---|---|");
    for pass in ["forward", "backward"] {
        let mut hidden_time = 0.0;
        for pe in 0..PES {
            let (gets, tiles) = (
                spans(&trace, pass, pe, "get")?,
                spans(&trace, pass, pe, "tile")?,
            );
            let time: f64 = gets.iter().map(|(start, end)| end - start).sum();
            let hidden: f64 = gets.iter().map(|get| covered(*get, &tiles)).sum();
            let share = hidden / time * 100.0;
            println!(
                "| {pass} | {pe} | {} | {:.3} ms | {share:.0} % |",
                gets.len(),
                time * 1e-3
            );
            hidden_time += hidden;
        }
        if hidden_time == 0.0 {
            wrong.push(format!("{pass}: no get while a tile of the same PE runs"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("; "))
}

/// Start and end of what PE `pe` did under that name, in microseconds.
fn spans(trace: &Value, pass: &str, pe: usize, name: &str) -> Result<Vec<(f64, f64)>, String> {
    let events = trace["traceEvents"]
        .as_array()
        .ok_or("the trace has no events")?;
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
    others
        .iter()
        .map(|other| (span.1.min(other.1) - span.0.max(other.0)).max(0.0))
        .sum()
}

fn number(value: &Value) -> Result<f64, String> {
    value
        .as_f64()
        .ok_or_else(|| format!("expected a number, found {value}"))
}

fn text(value: &Value) -> Result<&str, String> {
    value
        .as_str()
        .ok_or_else(|| format!("expected a text, found {value}"))
}

//! `--trace`: what every stream did when, for Chrome's and Perfetto's viewers.

use crate::error::Error;
use crate::output::write_beside;
use crate::stats::Span;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// Writes the spans: a process a PE, a track a stream, microseconds since the start.
pub fn write(path: &Path, spans: &[Span]) -> Result<(), Error> {
    let text = events(spans);
    write_beside("--trace", path, |file| {
        file.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        for (number, event) in text.iter().enumerate() {
            let comma = if number + 1 < text.len() { "," } else { "" };
            writeln!(file, "{event}{comma}")?;
        }
        file.write_all(b"]}\n")
    })
}

fn events(spans: &[Span]) -> Vec<Value> {
    // Track numbers by first use, so that the viewer shows the streams in the order in which they start.
    let mut tracks: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for span in spans {
        let streams = tracks.entry(span.pe).or_default();
        if !streams.contains(&span.stream.as_str()) {
            streams.push(&span.stream);
        }
    }
    let mut events = Vec::with_capacity(spans.len() + tracks.len());
    for (pe, streams) in &tracks {
        events.push(
            json!({"ph": "M", "name": "process_name", "pid": pe, "args": {"name": format!("PE {pe}")}}),
        );
        events.push(json!({"ph": "M", "name": "process_sort_index", "pid": pe, "args": {"sort_index": pe}}));
        for (tid, stream) in streams.iter().enumerate() {
            events.push(
                json!({"ph": "M", "name": "thread_name", "pid": pe, "tid": tid, "args": {"name": stream}}),
            );
        }
    }
    events.extend(spans.iter().map(|span| {
        let tid = tracks[&span.pe].iter().position(|stream| *stream == span.stream);
        let args: Map<String, Value> =
            span.args.iter().map(|(name, value)| (name.to_string(), (*value).into())).collect();
        json!({
            "ph": "X",
            "name": span.name,
            "cat": span.pass,
            "pid": span.pe,
            "tid": tid,
            "ts": span.start * 1e6,
            "dur": (span.end - span.start).max(0.0) * 1e6,
            "args": args,
        })
    }));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_a_pe_and_a_track_a_stream() {
        let span = |pe, stream: &str, name: &str, start| Span {
            pe,
            stream: stream.to_owned(),
            name: name.to_owned(),
            pass: "forward".into(),
            start,
            end: start + 0.5,
            args: vec![("bytes".into(), 12)],
        };
        let spans =
            [span(0, "compute", "tile", 0.0), span(0, "comm", "get", 0.25), span(1, "comm", "wait", 1.0)];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        write(&path, &spans).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(move |event| event["ph"] == ph).collect::<Vec<_>>();
        let names: Vec<_> = of("M").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
        assert_eq!(names, ["PE 0", "compute", "comm", "PE 1", "comm"]);
        let get = of("X")[1];
        assert_eq!((&get["name"], &get["pid"], &get["tid"]), (&json!("get"), &json!(0), &json!(1)));
        assert_eq!((&get["ts"], &get["dur"]), (&json!(250_000.0), &json!(500_000.0)));
        assert_eq!(get["args"]["bytes"], 12);
    }

    #[test]
    fn no_spans_are_a_trace_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        write(&path, &[]).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(trace["traceEvents"], json!([]));
    }
}

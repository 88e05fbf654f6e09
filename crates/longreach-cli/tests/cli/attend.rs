//! `longreach attend` from file to file.

use crate::support::{Folder, attend, entry, safetensors, sample, small, small_entries, text};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::Path;

fn json(input: &Path, args: &[&str]) -> Value {
    let ran = attend(input, &[args, &["--json"]].concat());
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

fn tensor(path: &Path, name: &str) -> (Vec<usize>, safetensors::Dtype, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    (tensor.shape().to_vec(), tensor.dtype(), tensor.data().to_vec())
}

/// Bytes that a failed comparison does not print.
#[derive(PartialEq)]
struct Bytes(Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

fn bytes(path: &Path) -> Bytes {
    Bytes(std::fs::read(path).unwrap())
}

#[test]
fn the_sample_is_within_the_accuracy_rule() {
    let report = json(&sample(), &["--pes", "4", "--threads", "1", "--backward", "--check"]);
    assert_eq!(report["check"]["passed"], true);
    for name in ["out", "lse", "dq", "dk", "dv"] {
        let row = &report["check"][name];
        let relative = row["relative"].as_f64().unwrap();
        assert!(relative > 0.0 && relative < 5e-6, "{name}: {row}");
        assert!(row["one_device_relative"].as_f64().unwrap() > 0.0);
    }
    for (key, value) in [
        ("pes", 4.into()),
        ("transport", "threads".into()),
        ("device", "cpu".into()),
        ("dtype", "bf16".into()),
        ("batch", 1.into()),
        ("q_len", 1024.into()),
        ("kv_len", 1024.into()),
        ("q_heads", 9.into()),
        ("kv_heads", 3.into()),
        ("head_dim", 64.into()),
        ("value_dim", 64.into()),
        ("mask", "causal".into()),
        ("layout", "zigzag".into()),
    ] {
        let value: Value = value;
        assert_eq!(report[key], value, "{key}");
    }
    let kv_bytes = 2 * 1024 * 3 * 64 * 2;
    for pass in ["forward", "backward"] {
        assert_eq!(report[pass]["bytes_ring"], 3 * kv_bytes, "{pass}");
        // Zigzag and causal: three quarters of a ring.
        assert_eq!(report[pass]["bytes_fetched"], 3 * kv_bytes * 3 / 4, "{pass}");
        assert!(report[pass]["gflops"].as_f64().unwrap() > 0.0);
        let sum: u64 = report["per_pe"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pe| pe[pass]["bytes_fetched"].as_u64().unwrap())
            .sum();
        assert_eq!(report[pass]["bytes_fetched"], sum);
    }
    assert!(report["backward"]["bytes_returned"].as_u64().unwrap() > 0);
    assert!(report["peak_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["per_pe"].as_array().unwrap().len(), 4);
}

#[test]
fn what_float32_itself_loses_is_said_to_be_so() {
    let folder = Folder::new();
    let (tokens, dim) = (256, 16);
    let shape = [1, tokens, 2, dim];
    let mut file = safetensors("", &["q", "k", "v"].map(|name| entry(name, "F32", &shape)));
    let bytes = tokens * 2 * dim * 4;
    let at = file.len() - bytes;
    for x in file[at..].chunks_mut(4) {
        let value = f32::from_le_bytes(x.try_into().unwrap());
        x.copy_from_slice(&(value + 50.0).to_le_bytes());
    }
    let input = folder.file("in", file);
    let ran = attend(&input, &["--pes", "3", "--backward", "--check"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let line = ran.stderr.lines().last().unwrap();
    assert!(
        line.starts_with("error: dq, dk not within the accuracy rule, and one device is no better: "),
        "{line}"
    );
    assert!(line.ends_with("float32 itself loses this much on this input"), "{line}");
}

#[test]
fn the_table_shows_every_pe_and_every_error() {
    let folder = Folder::new();
    let ran = attend(&folder.file("in", small("F32")), &["--pes", "3", "--backward", "--check"]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    for part in
        ["PE 0", "PE 1", "PE 2", "fetched", "ring", "exposed", "GFLOP/s", "out", "lse", "dq", "dk", "dv"]
    {
        assert!(ran.stdout.contains(part), "no {part} in\n{}", ran.stdout);
    }
    assert!(ran.stderr.contains("3 PEs"), "{}", ran.stderr);
}

#[test]
fn what_was_not_asked_for_is_null() {
    let folder = Folder::new();
    let report = json(&folder.file("in", small("F16")), &["--pes", "1"]);
    assert_eq!((&report["backward"], &report["check"]), (&Value::Null, &Value::Null));
    assert_eq!(report["forward"]["bytes_fetched"], 0);
    assert_eq!(report["dtype"], "f16");
}

#[test]
fn outputs_have_the_input_s_type_and_fixed_bytes() {
    let folder = Folder::new();
    let input = folder.file("in", small("BF16"));
    let (one, two, wide) = (folder.path("one"), folder.path("two"), folder.path("wide"));
    json(&input, &["--pes", "2", "--backward", "--out", &text(&one)]);
    json(&input, &["--pes", "2", "--backward", "--threads", "3", "--out", &text(&two)]);
    json(&input, &["--pes", "2", "--backward", "--out", &text(&wide), "--out-dtype", "f32"]);
    assert_eq!(bytes(&one), bytes(&two));
    for (name, shape) in [
        ("out", vec![2, 12, 4, 6]),
        ("lse", vec![2, 4, 12]),
        ("dq", vec![2, 12, 4, 8]),
        ("dk", vec![2, 12, 2, 8]),
        ("dv", vec![2, 12, 2, 6]),
    ] {
        let (given, dtype, bytes) = tensor(&one, name);
        let (_, wide_dtype, wide_bytes) = tensor(&wide, name);
        assert_eq!((given, wide_dtype), (shape, safetensors::Dtype::F32), "{name}");
        if name == "lse" {
            assert_eq!(dtype, safetensors::Dtype::F32);
            assert_eq!(Bytes(bytes), Bytes(wide_bytes));
        } else {
            assert_eq!(dtype, safetensors::Dtype::BF16, "{name}");
            let rounded: Vec<u8> = wide_bytes
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
                .collect();
            assert_eq!(Bytes(bytes), Bytes(rounded), "{name}");
        }
    }
    assert_eq!(folder.names(), ["in", "one", "two", "wide"]);
}

#[test]
fn a_forward_run_writes_no_gradients() {
    let folder = Folder::new();
    let out = folder.path("out");
    json(&folder.file("in", small("F32")), &["--out", &text(&out)]);
    let bytes = std::fs::read(out).unwrap();
    let mut names: Vec<String> =
        SafeTensors::deserialize(&bytes).unwrap().names().iter().map(|name| name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["lse", "out"]);
}

#[test]
fn a_file_whose_data_is_not_aligned_gives_the_same() {
    let folder = Folder::new();
    let aligned = small("F32");
    let length = u64::from_le_bytes(aligned[..8].try_into().unwrap());
    // One more blank in the header moves the data by one byte.
    let (header, data) = aligned[8..].split_at(length as usize);
    let moved = [&(length + 1).to_le_bytes(), header, b" ", data].concat();
    let (one, two) = (folder.path("one"), folder.path("two"));
    json(&folder.file("aligned", &aligned), &["--backward", "--out", &text(&one)]);
    json(&folder.file("moved", &moved), &["--backward", "--out", &text(&two)]);
    assert_eq!(bytes(&one), bytes(&two));
}

#[test]
fn a_gradient_comes_from_the_file_then_the_input_then_the_seed() {
    let folder = Folder::new();
    let plain = folder.file("plain", small("F32"));
    let mut entries = small_entries("F32");
    entries.push(entry("dout", "F32", &[2, 12, 4, 6]));
    let with = folder.file("with", safetensors("", &entries));
    // Another pattern than the input's: the same numbers in another order.
    let mut reversed = safetensors("", &[entry("dout", "F32", &[2, 12, 4, 6])]);
    let at = reversed.len() - 2 * 12 * 4 * 6 * 4;
    reversed[at..].rotate_left(12);
    let other = text(&folder.file("other", reversed));
    let dv = |name: &str, input: &Path, args: &[&str]| {
        let out = folder.path(name);
        json(input, &[args, &["--backward", "--out", &text(&out)]].concat());
        Bytes(tensor(&out, "dv").2)
    };
    let of_input = dv("1", &with, &[]);
    let of_file = dv("2", &with, &["--dout", &other]);
    let of_seed = dv("3", &plain, &["--seed", "1"]);
    assert_ne!(of_input, of_file);
    assert_eq!(of_file, dv("4", &plain, &["--dout", &other, "--seed", "9"]));
    assert_eq!(of_input, dv("5", &with, &["--seed", "9"]));
    assert_eq!(of_seed, dv("6", &plain, &["--seed", "1", "--pes", "2"]));
    assert_ne!(of_seed, dv("7", &plain, &["--seed", "2"]));
}

#[test]
fn metadata_are_defaults_that_flags_override() {
    let folder = Folder::new();
    let metadata = r#""mask":"full","scale":"0.5","layout":"bshd""#;
    let given = folder.file("given", safetensors(metadata, &small_entries("F32")));
    let plain = folder.file("plain", small("F32"));
    let out = |name: &str, input: &Path, args: &[&str]| {
        let out = folder.path(name);
        json(input, &[args, &["--out", &text(&out)]].concat());
        bytes(&out)
    };
    assert_eq!(out("1", &given, &[]), out("2", &plain, &["--mask", "full", "--scale", "0.5"]));
    let third = (8f64).powf(-0.5).to_string();
    assert_eq!(out("3", &given, &["--mask", "causal", "--scale", &third]), out("4", &plain, &[]));
    assert_ne!(out("5", &given, &[]), out("6", &plain, &[]));
    // What a flag overrides is not looked at.
    let odd = folder.file("odd", safetensors(r#""mask":"odd","scale":"odd""#, &small_entries("F32")));
    assert_eq!(out("7", &odd, &["--mask", "causal", "--scale", &third]), out("8", &plain, &[]));
}

#[test]
fn masks_written_in_different_ways_are_the_same() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let bands = folder.file(
        "bands.json",
        r#"{"bands":[{"q":[0,5],"lo":{"fixed":0},"hi":{"diagonal":1}},
                     {"q":[5,12],"lo":{"fixed":5},"hi":{"diagonal":1}}]}"#,
    );
    let out = |name: &str, args: &[&str]| {
        let out = folder.path(name);
        json(&input, &[args, &["--pes", "1", "--check", "--backward", "--out", &text(&out)]].concat());
        bytes(&out)
    };
    let documents = out("1", &["--documents", "0,5,5,12"]);
    assert_eq!(documents, out("2", &["--documents", "0..5,5..12;0..5,5..12"]));
    assert_eq!(documents, out("3", &["--mask", "full", "--window", "-1,0", "--documents", "0,5,12"]));
    assert_eq!(documents, out("4", &["--bands", &text(&bands)]));
    assert_ne!(documents, out("5", &[]));
    assert_ne!(documents, out("6", &["--documents", "0,5,12", "--window", "2,0"]));
}

#[test]
fn repeats_are_bit_equal_and_traced() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    let trace = folder.path("trace.json");
    let args = ["--pes", "3", "--backward", "--repeat", "5", "--deterministic", "--trace", &text(&trace)];
    json(&input, &args);
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "process_name"));
    let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert!(spans.iter().all(|span| span["dur"].as_f64().unwrap() >= 0.0 && span["ts"].is_number()));
    for name in ["get", "publish", "tile"] {
        let named = |span: &&&Value| span["name"].as_str().unwrap().starts_with(name);
        assert!(spans.iter().any(|span| named(&span)), "no {name} in the trace");
    }
}

#[test]
fn layouts_and_stages_meet_the_rule() {
    let folder = Folder::new();
    let input = folder.file("in", small("F32"));
    for layout in ["zigzag", "contiguous", "striped", "striped:2"] {
        for stages in ["1", "2", "auto"] {
            let args = ["--pes", "3", "--layout", layout, "--stages", stages, "--backward", "--check"];
            let report = json(&input, &args);
            assert_eq!(report["layout"], layout);
            assert_eq!(report["check"]["passed"], true);
        }
    }
}

//! Bad input and unsupported requests: exit 2, one line that names argument and value, nothing written.

use crate::support::{Folder, attend, entry, longreach, safetensors, small_entries};

/// A folder with the small input in it, and that input's path.
fn input(metadata: &str) -> (Folder, std::path::PathBuf) {
    let folder = Folder::new();
    let path = folder.file("in.safetensors", safetensors(metadata, &small_entries("F32")));
    (folder, path)
}

#[test]
fn values_that_an_argument_does_not_take() {
    let (folder, path) = input("");
    for (args, parts) in [
        (&["--pes", "0"][..], &["'0'", "--pes", "from 1 to 1024"][..]),
        (&["--pes", "-1"], &["'-1'", "--pes"]),
        (&["--pes", "two"], &["'two'", "--pes"]),
        (&["--pes", "1.5"], &["'1.5'", "--pes"]),
        (&["--pes", "10000"], &["'10000'", "from 1 to 1024"]),
        (&["--pes", "99999999999999999999"], &["--pes"]),
        (&["--pes"], &["--pes"]),
        (&["--threads", "0"], &["'0'", "--threads"]),
        (&["--threads", "-3"], &["'-3'", "--threads"]),
        (&["--transport", "pigeons"], &["'pigeons'", "--transport", "threads"]),
        (&["--layout", "ring"], &["'ring'", "--layout", "zigzag, contiguous"]),
        (&["--layout", "striped:0"], &["'striped:0'", "--layout"]),
        (&["--layout", "striped:x"], &["'striped:x'", "--layout"]),
        (&["--layout", ""], &["--layout"]),
        (&["--stages", "0"], &["'0'", "--stages", "from 1 to"]),
        (&["--stages", "-1"], &["'-1'", "--stages"]),
        (&["--stages", "some"], &["'some'", "--stages", "auto"]),
        (&["--memory", "0"], &["'0'", "--memory"]),
        (&["--memory", "1GB"], &["'1GB'", "--memory", "GiB"]),
        (&["--memory", "-5"], &["'-5'", "--memory"]),
        (&["--memory", "18446744073709551615GiB"], &["--memory"]),
        (&["--mask", "diagonal"], &["'diagonal'", "--mask", "causal, full"]),
        (&["--window", "-2,0"], &["'-2,0'", "--window", "-1 for no bound"]),
        (&["--window", "0,-2"], &["'0,-2'", "--window"]),
        (&["--window", "5"], &["'5'", "--window"]),
        (&["--window", "1,2,3"], &["'1,2,3'", "--window"]),
        (&["--window", "x,1"], &["'x,1'", "--window"]),
        (&["--window", "--json"], &["--window"]),
        (&["--scale", "nan"], &["'nan'", "--scale", "finite"]),
        (&["--scale", "-inf"], &["'-inf'", "--scale"]),
        (&["--scale", "1e999"], &["'1e999'", "--scale"]),
        (&["--scale", "big"], &["'big'", "--scale"]),
        (&["--seed", "-1"], &["'-1'", "--seed"]),
        (&["--seed", "1.0"], &["'1.0'", "--seed"]),
        (&["--repeat", "0"], &["'0'", "--repeat"]),
        (&["--deadline", "0"], &["'0'", "--deadline"]),
        (&["--deadline", "-1"], &["'-1'", "--deadline"]),
        (&["--deadline", "inf"], &["'inf'", "--deadline"]),
        (&["--deadline", "nan"], &["'nan'", "--deadline"]),
        (&["--deadline", "1e300"], &["'1e300'", "--deadline"]),
        (&["--out-dtype", "f64"], &["'f64'", "--out-dtype", "input, f32"]),
        (&["--backwards"], &["--backwards"]),
        (&["--pes", "2", "--pes", "3"], &["--pes"]),
        (&["--json=yes"], &["--json"]),
        (&["second.safetensors"], &["second.safetensors"]),
    ] {
        attend(&path, args).refused(parts);
    }
    assert_eq!(folder.names(), ["in.safetensors"]);
}

#[test]
fn commands_that_there_are_not() {
    longreach::<&str>([]).refused(&["subcommand"]);
    longreach(["attention"]).refused(&["attention"]);
    longreach(["attend"]).refused(&["INPUT"]);
    longreach(["bench"]).refused(&["subcommand"]);
    longreach(["bench", "attention", "--seqlen", "0"]).refused(&["'0'", "--seqlen"]);
    longreach(["bench", "attention", "--dtype", "f64"]).refused(&["'f64'", "--dtype"]);
    longreach(["bench", "attention", "--q-heads", "10", "--kv-heads", "4"]).refused(&[
        "--kv-heads 4",
        "10",
        "--q-heads",
    ]);
    longreach(["bench", "attention", "--documents", "0,5"]).refused(&["--documents 0,5", "4096"]);
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["--version"], &["attend", "--help"], &["bench", "attention", "--help"]] {
        let ran = longreach(args);
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
        assert!(ran.stdout.contains("longreach") || ran.stdout.contains("Usage"), "{}", ran.stdout);
    }
}

#[test]
fn masks_that_contradict_themselves_or_the_lengths() {
    let (folder, path) = input("");
    let bands = |text: &str| folder.file("bands.json", text).display().to_string();
    let good = bands(r#"{"bands":[{"q":[0,12],"lo":{"fixed":0},"hi":{"diagonal":1}}]}"#);
    for (args, parts) in [
        (&["--bands", &good, "--mask", "full"][..], &["--bands", "--mask"][..]),
        (&["--bands", &good, "--window", "-1,0"], &["--bands", "--window"]),
        (&["--bands", &good, "--documents", "0,12"], &["--bands", "--documents"]),
        (&["--bands", &good, "--kv-documents", "0,12"], &["--bands", "--kv-documents"]),
        (&["--bands", "nowhere.json"], &["--bands nowhere.json", "cannot be read"]),
        (&["--documents", "0,5"], &["--documents 0,5", "ends at 5, expected 12"]),
        (&["--documents", "0,5,3,12"], &["--documents 0,5,3,12", "decreases from 5 to 3"]),
        (&["--documents", "0..5,4..12"], &["--documents 0..5,4..12"]),
        (&["--documents", "0..13"], &["--documents 0..13", "12 tokens"]),
        (&["--documents", "-1,12"], &["--documents -1,12"]),
        (&["--documents", ""], &["--documents"]),
        (&["--documents", "0,12;0,12;0,12"], &["has 3 rows", "expected 1 or 2"]),
        (&["--kv-documents", "0,12"], &["--kv-documents 0,12", "--documents"]),
        (&["--documents", "0,3,12", "--kv-documents", "0,12"], &["--kv-documents 0,12", "expected 2"]),
    ] {
        attend(&path, args).refused(parts);
    }
    for (text, part) in [
        ("", "not a list of bands"),
        ("{\"bands\":3}", "not a list of bands"),
        ("[[]]", "expected an object"),
        (r#"{"bands":[[[0,12],{"fixed":0},{"diagonal":1}]]}"#, "expected an object"),
        (r#"{"bands":[{"q":[0,13],"lo":{"fixed":0},"hi":{"diagonal":1}}]}"#, "band 0 has q [0, 13)"),
        (r#"{"bands":[{"q":[0,1],"lo":{"fixed":"a"},"hi":{"diagonal":1}}]}"#, "not a list of bands"),
        (
            r#"{"bands":[{"q":[0,12],"lo":{"fixed":0},"hi":{"fixed":5}},{"q":[3,4],"lo":{"fixed":4},"hi":{"fixed":6}}]}"#,
            "--bands",
        ),
    ] {
        attend(&path, &["--bands", &bands(text)]).refused(&["--bands", part]);
    }
}

#[test]
fn lengths_that_differ_need_documents_of_both_sides() {
    let folder = Folder::new();
    let entries = [
        entry("q", "F32", &[1, 5, 1, 4]),
        entry("k", "F32", &[1, 9, 1, 4]),
        entry("v", "F32", &[1, 9, 1, 4]),
    ];
    let path = folder.file("x", safetensors("", &entries));
    attend(&path, &["--documents", "0,5"]).refused(&["--documents 0,5", "--kv-documents"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let (folder, path) = input("");
    let missing = folder.path("missing/out").display().to_string();
    let itself = folder.path("").display().to_string();
    let x = folder.path("x").display().to_string();
    for argument in ["--out", "--trace"] {
        attend(&path, &[argument, &missing]).refused(&[argument, "missing/out", "cannot be written"]);
        attend(&path, &[argument, &itself]).refused(&[argument, "not the name of a file"]);
        attend(&path, &[argument, ""]).refused(&[argument]);
    }
    attend(&path, &["--out", &x, "--trace", &x]).refused(&["--trace", "--out"]);
    assert_eq!(folder.names(), ["in.safetensors"]);
}

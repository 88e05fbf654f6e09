//! Runs the program and makes its files, byte by byte.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of files, gone with the value.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The activations of a real model that stand in the repository.
pub fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/smollm2-layer12-1k.safetensors")
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// What a run of the program left.
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longreach"))
}

pub fn longreach<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    ran(program().args(args))
}

pub fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    Ran {
        status: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// `longreach attend INPUT args...`
pub fn attend(input: &Path, args: &[&str]) -> Ran {
    let first: [&OsStr; 2] = ["attend".as_ref(), input.as_ref()];
    longreach(first.into_iter().chain(args.iter().map(AsRef::as_ref)))
}

impl Ran {
    /// Exit 2, nothing on stdout, one line on stderr that has all `parts`.
    #[track_caller]
    pub fn refused(&self, parts: &[&str]) {
        assert_eq!(self.status, Some(2), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert_eq!(self.stderr.matches('\n').count(), 1, "not one line: {}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no '{part}' in: {}", self.stderr);
        }
    }
}

/// A tensor's line of a safetensors header and the number of its bytes.
pub struct Entry {
    pub name: &'static str,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
}

pub fn entry(name: &'static str, dtype: &'static str, shape: &[usize]) -> Entry {
    Entry { name, dtype, shape: shape.to_vec() }
}

/// A safetensors file of the tensors, one after the other, filled with a fixed pattern of small numbers.
pub fn safetensors(metadata: &str, entries: &[Entry]) -> Vec<u8> {
    let mut header = format!("{{\"__metadata__\":{{{metadata}}}");
    let mut data = Vec::new();
    for Entry { name, dtype, shape } in entries {
        let start = data.len();
        for at in 0..shape.iter().product::<usize>() {
            // From -1 to 1 in steps of 1/8: exact in every type.
            let x = ((at * 7 + name.len()) % 17) as f32 / 8.0 - 1.0;
            match *dtype {
                "F32" => data.extend(x.to_le_bytes()),
                "BF16" => data.extend(&x.to_le_bytes()[2..]),
                "F64" => data.extend(f64::from(x).to_le_bytes()),
                "F16" => data.extend(half::f16::from_f32(x).to_le_bytes()),
                "U8" => data.push(at as u8),
                other => panic!("no pattern for {other}"),
            }
        }
        let end = data.len();
        header += &format!(
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        );
    }
    header.push('}');
    let padded = header.len().next_multiple_of(8);
    raw(&format!("{header:padded$}"), &data)
}

/// A header as given, with its true length before it and `data` behind it.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A small input that fits: 2 batch rows, 12 queries and keys, 4 and 2 heads, dimensions 8 and 6.
pub fn small(dtype: &'static str) -> Vec<u8> {
    safetensors("", &small_entries(dtype))
}

pub fn small_entries(dtype: &'static str) -> Vec<Entry> {
    vec![
        entry("q", dtype, &[2, 12, 4, 8]),
        entry("k", dtype, &[2, 12, 2, 8]),
        entry("v", dtype, &[2, 12, 2, 6]),
    ]
}

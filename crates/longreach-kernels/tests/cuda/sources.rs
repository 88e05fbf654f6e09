//! The kernels' sources; these need the run-time compiler and no GPU.

use longreach_kernels::Error;
use longreach_kernels::cuda::{SOURCE, compile, compiler_version};

/// Whether the compiler is there; says so where it is not.
fn compiler(test: &str) -> bool {
    match compiler_version() {
        Ok((major, minor)) => {
            println!("NVRTC {major}.{minor}");
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("libnvrtc.so") && text.contains("pip install nvidia-cuda-nvrtc"), "{text}");
            eprintln!("SKIPPED {test}: {text}");
            false
        }
    }
}

#[test]
fn kernels_compile_for_all_architectures_and_spill_no_register() {
    if !compiler("kernels_compile_for_all_architectures_and_spill_no_register") {
        return;
    }
    for arch in ["sm_80", "sm_90a", "sm_100"] {
        let compiled = compile(SOURCE, arch).expect("machine code");
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{arch}");
        let reports: Vec<&str> = compiled.log.lines().filter(|line| line.contains("spill stores")).collect();
        let kernels = compiled.log.matches("Compiling entry function").count();
        assert!(
            kernels >= 15 && reports.len() == kernels,
            "a report for each kernel of {arch}: {}",
            compiled.log
        );
        for report in reports {
            let clean = report.contains(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads");
            assert!(clean, "{arch}: {report}\n{}", compiled.log);
        }
    }
}

#[test]
fn a_source_that_does_not_compile_is_an_error_with_the_compilers_words() {
    if !compiler("a_source_that_does_not_compile_is_an_error_with_the_compilers_words") {
        return;
    }
    match compile("__global__ void f() { nonsense(); }", "sm_90a") {
        Err(Error::Call { library: "NVRTC", reason, .. }) => {
            assert!(reason.contains("nonsense") && reason.contains("sm_90a"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

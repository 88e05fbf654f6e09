//! NVSHMEM's host library, as far as it goes without a GPU. `cargo xtask nvshmem` brings the library; without it these
//! tests are skipped, after saying so.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]

use longreach_shmem::nvshmem::{Library, Version};
use longreach_shmem::{Error, World};
use std::process::Command;

fn library(test: &str) -> Option<Library> {
    if std::env::var_os("LONGREACH_NVSHMEM").is_none() {
        eprintln!("SKIPPED {test}: LONGREACH_NVSHMEM does not say where the library is");
        return None;
    }
    Some(Library::open().expect("the library that was brought"))
}

#[test]
fn the_library_tells_its_release_and_has_all_functions() {
    let Some(library) = library("the_library_tells_its_release_and_has_all_functions") else { return };
    // Asking looks all functions up.
    assert_eq!(library.version().unwrap(), Version(3, 4, 5));
    assert!(library.path().is_absolute());
}

/// Runs this test program's test `name` again with an environment of its own.
fn again(name: &str, variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture"]).env("AGAIN", "1");
    command.env_remove("LONGREACH_NVSHMEM").env_remove("VIRTUAL_ENV").env("PATH", "/nowhere");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_library_that_is_nowhere_says_where_it_was_looked_for() {
    if std::env::var_os("AGAIN").is_some() {
        match Library::open() {
            Ok(library) => println!("found {library:?}"),
            Err(error) => println!("{error}"),
        }
        return;
    }
    let name = "a_library_that_is_nowhere_says_where_it_was_looked_for";
    let text = again(name, &[]);
    let says = ["libnvshmem_host.so.3 was looked for", "nvidia-nvshmem-cu13", "LONGREACH_NVSHMEM"];
    // The machine may have it after all.
    assert!(text.contains("found Library") || says.iter().all(|words| text.contains(words)), "{text}");
    let text = again(name, &[("LONGREACH_NVSHMEM", "/nowhere/at/all.so")]);
    assert!(text.contains("LONGREACH_NVSHMEM is /nowhere/at/all.so and cannot be loaded"), "{text}");
}

#[test]
fn worlds_of_threads_are_refused_by_name() {
    // Without a GPU there is no handle to give, and what is refused first is the GPU.
    let Err(error) = longreach_device::cuda::Gpu::open(0) else {
        let error = World::threads(2)
            .unwrap()
            .run(|pe| pe.team()?.start_nvshmem(&longreach_device::cuda::Gpu::open(0)?).map(drop))
            .unwrap_err();
        assert!(matches!(&error, Error::Failed(_) | Error::Nvshmem(_)), "{error}");
        assert!(error.to_string().contains("worlds whose PEs are processes"), "{error}");
        return;
    };
    assert!(error.to_string().contains("libcuda.so.1") || error.to_string().contains("cuInit"), "{error}");
}

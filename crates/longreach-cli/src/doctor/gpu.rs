//! GPUs, and the libraries that attention and transfers on them need.

use super::{Attempt, Gpus, Lack};

/// What was found of a library: its release, or why it cannot be used.
type Found = Result<String, String>;

impl Gpus {
    /// What is there.
    pub fn seen() -> Self {
        let (names, driver) = match names() {
            Ok(names) if names.is_empty() => {
                (names, Err("there is no GPU that this process may use".to_owned()))
            }
            Ok(names) => (names, Ok(())),
            Err(why) => (Vec::new(), Err(why)),
        };
        let libraries = [
            ("cuDNN", cudnn(), "pip install nvidia-cudnn-cu13, and its folder in LD_LIBRARY_PATH"),
            ("NVRTC", nvrtc(), "pip install nvidia-cuda-nvrtc==13.*, and its folder in LD_LIBRARY_PATH"),
            ("NVSHMEM", nvshmem(), "pip install nvidia-nvshmem-cu13, or LONGREACH_NVSHMEM=the file"),
        ];
        let enable = "NVIDIA's driver, of CUDA 13, and a GPU";
        let mut tried = vec![Attempt::of("GPU and driver", driver, enable)];
        let mut versions = Vec::new();
        for (name, found, enable) in libraries {
            versions.extend(found.as_ref().ok().map(|version| (name, version.clone())));
            tried.push(Attempt::of(name, found.map(drop), enable));
        }
        let works = tried[..3].iter().all(|attempt| attempt.works);
        let nvshmem = works && tried[3].works;
        Self { works, names, nvshmem, tried, versions }
    }

    /// What is missing.
    pub fn lacks(&self) -> Vec<Lack> {
        let lacking = self.tried.iter().filter(|attempt| !attempt.works);
        lacking
            .map(|attempt| Lack {
                what: format!("{}: {}", attempt.name, attempt.error.as_deref().unwrap_or("does not work")),
                stops: if attempt.name == "NVSHMEM" { "--transport nvshmem" } else { "--device cuda" },
                enable: attempt.enable.unwrap_or_default().to_owned(),
            })
            .collect()
    }
}

fn names() -> Result<Vec<String>, String> {
    let name = |ordinal| longreach::Gpu::open(ordinal).and_then(|gpu| gpu.name());
    let count = longreach::Gpu::count().map_err(|error| error.to_string())?;
    (0..count).map(name).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

#[cfg(target_os = "linux")]
fn cudnn() -> Found {
    longreach_kernels::cuda::cudnn::found().map_err(|error| error.to_string())
}

#[cfg(target_os = "linux")]
fn nvrtc() -> Found {
    let (major, minor) = longreach_kernels::cuda::compiler_version().map_err(|error| error.to_string())?;
    Ok(format!("{major}.{minor}"))
}

#[cfg(target_os = "linux")]
fn nvshmem() -> Found {
    let library = longreach::nvshmem::Library::open().map_err(|error| error.to_string())?;
    let version = library.version().map_err(|error| error.to_string())?;
    Ok(format!("{version}, {}", library.path().display()))
}

#[cfg(not(target_os = "linux"))]
fn cudnn() -> Found {
    Err("GPUs are supported on Linux".to_owned())
}

#[cfg(not(target_os = "linux"))]
fn nvrtc() -> Found {
    cudnn()
}

#[cfg(not(target_os = "linux"))]
fn nvshmem() -> Found {
    cudnn()
}

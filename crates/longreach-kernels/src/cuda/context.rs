//! What kernels on a GPU share: a stream, cuDNN's handle, plans by shape, own kernels.

use super::cudnn::{self, Handle, Plan, Problem};
use super::driver;
use super::kernels::Kernels;
use crate::error::Error;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstreamCaptureStatus_enum as Capture;
use std::collections::HashMap;
use std::sync::Arc;

/// What a caller chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of scratch at most; calls are split to fit. The order of sums follows from it.
    pub workspace: usize,
    /// Whether the same backward gives the same bits each time. cuDNN then needs two bytes a score, so that calls are
    /// split more often, and takes longer.
    pub deterministic: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { workspace: 1 << 30, deterministic: false }
    }
}

/// Kernels on one stream; used by one thread at a time.
pub struct Context {
    pub(super) handle: Handle,
    pub(super) kernels: Kernels,
    pub(super) settings: Settings,
    forwards: HashMap<Problem, Arc<(cudnn::Forward, Plan)>>,
    backwards: HashMap<Problem, Arc<(cudnn::Backward, Plan)>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("cudnn", &self.handle.version()).finish_non_exhaustive()
    }
}

impl Context {
    /// Kernels on `stream`. Fails where cuDNN or NVRTC is absent or too old.
    pub fn new(stream: &Arc<CudaStream>, settings: Settings) -> Result<Self, Error> {
        let (handle, kernels) = (Handle::new(stream)?, Kernels::new(stream)?);
        Ok(Self { handle, kernels, settings, forwards: HashMap::new(), backwards: HashMap::new() })
    }

    /// cuDNN's version, as people write it.
    pub fn cudnn_version(&self) -> String {
        self.handle.version()
    }

    /// Plans made so far: a steady state makes none.
    pub fn plans(&self) -> usize {
        self.forwards.len() + self.backwards.len()
    }

    /// Makes the GPU current, and refuses a stream whose work is being captured.
    pub(super) fn ready(&self) -> Result<(), Error> {
        let stream = self.handle.stream();
        stream.context().bind_to_thread().map_err(driver)?;
        match stream.capture_status().map_err(driver)? {
            Capture::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(Error::Refused(
                "attention on a stream under graph capture: end the capture, or use another stream"
                    .to_owned(),
            )),
        }
    }

    pub(super) fn forward_plan(&mut self, problem: &Problem) -> Result<Arc<(cudnn::Forward, Plan)>, Error> {
        if let Some(found) = self.forwards.get(problem) {
            return Ok(found.clone());
        }
        problem.check()?;
        let forward = cudnn::forward(problem);
        let what = format!("a forward of {problem:?}");
        let plan = Plan::new(&self.handle, &forward.graph, &what, self.settings.workspace)?;
        Ok(self.forwards.entry(*problem).or_insert(Arc::new((forward, plan))).clone())
    }

    pub(super) fn backward_plan(&mut self, problem: &Problem) -> Result<Arc<(cudnn::Backward, Plan)>, Error> {
        if let Some(found) = self.backwards.get(problem) {
            return Ok(found.clone());
        }
        problem.check()?;
        let backward = cudnn::backward(problem);
        let what = format!("a backward of {problem:?}");
        let plan = Plan::new(&self.handle, &backward.graph, &what, self.settings.workspace)?;
        Ok(self.backwards.entry(*problem).or_insert(Arc::new((backward, plan))).clone())
    }
}

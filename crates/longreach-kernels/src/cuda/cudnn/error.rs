//! What can go wrong with cuDNN.

/// An error of cuDNN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not on this machine.
    #[error("cuDNN was not found: {looked_for} was looked for where the system's loader looks; {remedy}")]
    Absent {
        /// File names.
        looked_for: &'static str,
        /// What installs it.
        remedy: &'static str,
    },
    /// The library is there, in a version that is known to be wrong.
    #[error("cuDNN {found} was found and {oldest} or later is needed: install a later nvidia-cudnn-cu13")]
    TooOld {
        /// What was found.
        found: String,
        /// What is needed.
        oldest: String,
    },
    /// No engine of the library takes the graph.
    #[error("cuDNN {version} has no engine for {what}: {reason}")]
    Unsupported {
        /// The library's version.
        version: String,
        /// What was asked for.
        what: String,
        /// What the library said last.
        reason: String,
    },
    /// A shape that attention does not take on a GPU.
    #[error("{0}")]
    Shape(String),
    /// A call of the library failed.
    #[error("cuDNN's {call} failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// What the library said.
        reason: String,
    },
}

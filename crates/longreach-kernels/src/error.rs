//! What a kernel refuses.

use std::ops::Range;

/// Why a kernel refused a call. Nothing has been written when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A view whose shape does not fit the other views.
    #[error("{what} has shape {given:?}, but {needs}: pass views of one call with matching shapes")]
    Shape {
        /// The argument.
        what: &'static str,
        /// Its shape, `[batch, sequence, heads, dim]`.
        given: [usize; 4],
        /// What it should have been.
        needs: String,
    },
    /// A slice whose length is not the one its shape asks for.
    #[error("{what} has {given} elements, but its shape {shape:?} needs exactly {needed}")]
    Length {
        /// The argument.
        what: &'static str,
        /// Elements given.
        given: usize,
        /// Elements needed.
        needed: usize,
        /// The shape that asks for them.
        shape: Vec<usize>,
    },
    /// A tile that reaches beyond the views.
    #[error(
        "tile {tile} lists {what} {given:?}, but the views have {what} 0..{len}: cut the tile to the views"
    )]
    Bounds {
        /// Index of the tile in the call.
        tile: usize,
        /// `batches`, `query rows` or `key rows`.
        what: &'static str,
        /// The range listed.
        given: Range<usize>,
        /// What the views have.
        len: usize,
    },
    /// A tile that lists a key row twice.
    #[error("tile {tile} lists key rows {first:?} and {second:?}, which overlap: list each key row once")]
    Overlap {
        /// Index of the tile in the call.
        tile: usize,
        /// One of the two ranges.
        first: Range<usize>,
        /// The other.
        second: Range<usize>,
    },
    /// Sizes whose product does not fit in the address space.
    #[error("{what} of shape {shape:?} is larger than the address space: use smaller views")]
    Overflow {
        /// The argument.
        what: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A library that GPUs need is not on this machine.
    #[error("{library} was not found: {looked_for} was looked for where the system's loader looks; {remedy}")]
    Absent {
        /// What people call it.
        library: &'static str,
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
    /// No engine of cuDNN takes the graph.
    #[error("cuDNN {version} has no engine for {what}: {reason}")]
    Unsupported {
        /// The library's version.
        version: String,
        /// What was asked for.
        what: String,
        /// What the library said last.
        reason: String,
    },
    /// What attention does not take on a GPU.
    #[error("{0}")]
    Refused(String),
    /// Scratch that is smaller than what was asked for.
    #[error(
        "scratch of {given} bytes was given and {needed} are needed: ask `forward_scratch` or `backward_scratch`"
    )]
    Scratch {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A call of a library failed.
    #[error("{library}'s {call} failed: {reason}")]
    Call {
        /// What people call the library.
        library: &'static str,
        /// The function.
        call: &'static str,
        /// What the library said.
        reason: String,
    },
}

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
}

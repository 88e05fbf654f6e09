//! Bands: which keys a query row sees, by two edges.

use std::ops::Range;

/// An edge of a band: the key position at which the visible keys of a query row begin or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// The same key position for every row.
    Fixed(i64),
    /// Key position = row position + n.
    Diagonal(i64),
}

impl Edge {
    /// The edge's key position for the row at position `row`.
    #[inline]
    pub const fn at(self, row: i64) -> i64 {
        match self {
            Edge::Fixed(n) => n,
            Edge::Diagonal(n) => row.saturating_add(n),
        }
    }
}

/// Rows `q` see the keys `lo(row) .. hi(row)`; where `hi <= lo` a row sees nothing.
///
/// In a mask, positions are global; in a tile, rows count from the tile's first row and keys from the
/// first gathered key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Band {
    /// The rows that this band speaks of, half-open.
    pub q: Range<i64>,
    /// First visible key.
    pub lo: Edge,
    /// One past the last visible key.
    pub hi: Edge,
}

impl Band {
    /// The keys among `0..keys` that the row at position `row` sees.
    #[inline]
    pub fn visible(&self, row: i64, keys: i64) -> Range<i64> {
        let lo = self.lo.at(row).clamp(0, keys);
        lo..self.hi.at(row).clamp(lo, keys)
    }
}

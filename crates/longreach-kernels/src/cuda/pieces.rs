//! Tiles cut into what one call of cuDNN takes: every row sees a key, and edges are those of the call's own corner.

use super::cudnn::Bound;
use longreach_plan::{Band, Edge};
use std::ops::Range;

/// Rows and gathered keys of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Rows of the tile.
    pub rows: Range<i64>,
    /// Gathered keys of the tile.
    pub keys: Range<i64>,
    /// Which of these keys a row sees, counted from the piece's corner.
    pub bound: Bound,
}

/// The pieces of a tile of `rows` rows and `keys` gathered keys, which show each visible pair once.
pub fn pieces(band: &Band, rows: i64, keys: i64) -> Vec<Piece> {
    let all = Band { q: 0..rows, lo: Edge::Fixed(0), hi: Edge::Fixed(keys) };
    band.intersect(&all).iter().map(piece).collect()
}

/// A band whose rows all see a key.
fn piece(band: &Band) -> Piece {
    let (first, last) = (band.q.start, band.q.end - 1);
    let keys = band.lo.at(first)..band.hi.at(last);
    // Row i of the piece sees keys from i on, as its first row sees its first key.
    let left = matches!(band.lo, Edge::Diagonal(_)).then_some(0);
    let right = matches!(band.hi, Edge::Diagonal(_)).then(|| band.hi.at(first) - 1 - keys.start);
    Piece { rows: band.q.clone(), keys, bound: Bound { left, right } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(piece: &Piece, row: i64, key: i64) -> bool {
        let (i, j) = (row - piece.rows.start, key - piece.keys.start);
        piece.rows.contains(&row)
            && piece.keys.contains(&key)
            && piece.bound.left.is_none_or(|left| j >= i - left)
            && piece.bound.right.is_none_or(|right| j <= i + right)
    }

    #[test]
    fn pieces_show_each_visible_pair_once_and_leave_no_row_empty() {
        let edges = |n| [Edge::Fixed(n), Edge::Diagonal(n)];
        let (mut seen, mut several) = (0, 0);
        for lo in (-9..9).step_by(3).flat_map(edges) {
            for hi in (-6..16).step_by(2).flat_map(edges) {
                let band = Band { q: 1..9, lo, hi };
                let (rows, keys) = (8, 7);
                let pieces = pieces(&band, rows, keys);
                several += usize::from(pieces.len() > 1);
                for row in 0..rows {
                    for key in 0..keys {
                        let times = pieces.iter().filter(|piece| shows(piece, row, key)).count();
                        let visible = band.q.contains(&row) && band.visible(row, keys).contains(&key);
                        assert_eq!(times, usize::from(visible), "{band:?} {row} {key}: {pieces:?}");
                        seen += times;
                    }
                }
                for piece in &pieces {
                    let sees = |row| piece.keys.clone().any(|key| shows(piece, row, key));
                    assert!(piece.rows.clone().all(sees), "{band:?}: {piece:?}");
                    // cuDNN's rule for a left edge.
                    let (rows, keys) = (piece.rows.end - piece.rows.start, piece.keys.end - piece.keys.start);
                    assert!(piece.bound.left.is_none() || rows <= keys, "{band:?}: {piece:?}");
                }
            }
        }
        assert!(seen > 1000 && several > 10, "{seen} pairs, {several} tiles of several pieces");
    }

    #[test]
    fn causal_full_and_bottom_right_are_one_piece_each() {
        let causal = Band { q: 0..8, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) };
        let bound = Bound { left: None, right: Some(0) };
        assert_eq!(pieces(&causal, 8, 8), [Piece { rows: 0..8, keys: 0..8, bound }]);
        let bottom_right = Band { hi: Edge::Diagonal(6), ..causal };
        let bound = Bound { left: None, right: Some(5) };
        assert_eq!(pieces(&bottom_right, 8, 13), [Piece { rows: 0..8, keys: 0..13, bound }]);
        let full = Band { q: 0..8, lo: Edge::Fixed(0), hi: Edge::Fixed(5) };
        assert_eq!(pieces(&full, 8, 5), [Piece { rows: 0..8, keys: 0..5, bound: Bound::FULL }]);
    }
}

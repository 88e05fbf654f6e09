//! The sizes of a call, checked once.

use crate::error::Error;
use crate::tile::Tile;

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub batches: usize,
    pub q_rows: usize,
    pub kv_rows: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    /// Query heads for each key head.
    pub group: usize,
    /// head_dim of Q and K.
    pub dim_qk: usize,
    /// head_dim of V.
    pub dim_v: usize,
}

impl Shapes {
    /// Reads the sizes off the shapes of q, k and v; fails when they do not fit each other.
    pub(crate) fn new(q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Self, Error> {
        let [batches, q_rows, q_heads, dim_qk] = q;
        let [k_batches, kv_rows, kv_heads, k_dim] = k;
        let [v_batches, v_rows, v_heads, dim_v] = v;
        if (k_batches, k_dim) != (batches, dim_qk) {
            let needs = format!("q has batch {batches} and head_dim {dim_qk}");
            return Err(Error::Shape { what: "k", given: k, needs });
        }
        if (v_batches, v_rows, v_heads) != (batches, kv_rows, kv_heads) {
            let needs = format!("k has batch {batches}, {kv_rows} rows and {kv_heads} heads");
            return Err(Error::Shape { what: "v", given: v, needs });
        }
        if q_heads != 0 && (kv_heads == 0 || q_heads % kv_heads != 0) {
            let needs = format!("k has {kv_heads} heads, of which q's must be a multiple");
            return Err(Error::Shape { what: "q", given: q, needs });
        }
        let group = q_heads.checked_div(kv_heads).unwrap_or(0);
        Ok(Self { batches, q_rows, kv_rows, q_heads, kv_heads, group, dim_qk, dim_v })
    }

    /// Refuses tiles that reach beyond the views.
    pub(crate) fn check_tiles(&self, tiles: &[Tile]) -> Result<(), Error> {
        tiles
            .iter()
            .enumerate()
            .try_for_each(|(index, tile)| tile.check(index, self.batches, self.q_rows, self.kv_rows))
    }
}

//! What kernels compute on: device memory, by address.

use super::cudnn::{Bound, Element, Problem, Rows};
use super::pieces::Piece;

/// Inputs of attention on a device, contiguous: q `[batch, q_rows, q_heads, head_dim]`, k `[batch, kv_rows, kv_heads,
/// head_dim]`, v `[batch, kv_rows, kv_heads, value_dim]`, at 16-byte aligned addresses.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Address of q.
    pub q: u64,
    /// Address of k.
    pub k: u64,
    /// Address of v.
    pub v: u64,
    /// Batch entries.
    pub batch: usize,
    /// Query rows.
    pub q_rows: usize,
    /// Key rows.
    pub kv_rows: usize,
    /// Query heads, a multiple of the key heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a query or key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Type of all three.
    pub element: Element,
}

impl Operands {
    /// Elements of a query row, all heads.
    pub(super) fn q_row(&self) -> usize {
        self.q_heads * self.head_dim
    }

    /// Elements of an output row.
    pub(super) fn o_row(&self) -> usize {
        self.q_heads * self.value_dim
    }

    /// Elements of a key row.
    pub(super) fn k_row(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of a value row.
    pub(super) fn v_row(&self) -> usize {
        self.kv_heads * self.value_dim
    }

    /// The call for a piece of one batch row, whose operands lie side by side.
    pub(super) fn problem(&self, piece: &Piece) -> Problem {
        let [q_heads, kv_heads, head_dim, value_dim] =
            [self.q_heads, self.kv_heads, self.head_dim, self.value_dim].map(|size| size as i64);
        let q_len = piece.rows.end - piece.rows.start;
        let keys = piece.keys.end - piece.keys.start;
        // cuDNN refuses one query with one key: a second key stands behind the diagonal.
        let (kv_len, bound) = match (q_len, keys) {
            (1, 1) => (2, Bound { left: None, right: Some(0) }),
            _ => (keys, piece.bound),
        };
        Problem {
            batch: 1,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            head_dim,
            value_dim,
            element: self.element,
            q: Rows::contiguous(q_len, q_heads, head_dim),
            k: Rows::contiguous(kv_len, kv_heads, head_dim),
            v: Rows::contiguous(kv_len, kv_heads, value_dim),
            o: Rows::contiguous(q_len, q_heads, value_dim),
            bound,
        }
    }
}

/// Memory on the device that a call may use until its stream has run it.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// Where it begins, a multiple of 256.
    pub address: u64,
    /// Its bytes.
    pub len: usize,
}

/// Hands out a scratch, piece by piece; with no memory behind it, it counts what would be needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    start: u64,
    used: usize,
}

impl Room {
    pub(super) fn of(scratch: Scratch) -> Self {
        Self { start: scratch.address, used: 0 }
    }

    pub(super) fn counting() -> Self {
        Self { start: 0, used: 0 }
    }

    pub(super) fn take(&mut self, bytes: usize) -> u64 {
        let at = self.start + self.used as u64;
        self.used += bytes.next_multiple_of(256);
        at
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }
}

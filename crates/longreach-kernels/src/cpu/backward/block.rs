//! One work item of the backward: a block of keys against all rows that see it.

use std::ops::Range;

use pulp::Arch;

use super::room::{Part, Room};
use super::turns::Turns;
use super::waves::Item;
use crate::cpu::columns::{columns, heads_per_chunk, mask};
use crate::cpu::gemm::{Mat, gemm};
use crate::cpu::memory::{Scratch, Shared};
use crate::cpu::{FEW, KEYS, ROWS, pack, softmax};
use crate::shapes::Shapes;
use crate::tensor::View;
use crate::tile::{Gather, Tile, seeing_rows, seen_keys, sees_all};

/// What all work items of a call share.
pub(crate) struct Call<'a> {
    pub q: &'a View<'a>,
    pub k: &'a View<'a>,
    pub v: &'a View<'a>,
    pub dout: &'a View<'a>,
    pub lse: &'a [f32],
    pub delta: &'a [f32],
    pub scale: f32,
    pub shapes: Shapes,
    pub dq: Shared<'a>,
    pub dk: Shared<'a>,
    pub dv: Shared<'a>,
    pub arch: Arch,
    /// Tells that a block of keys has got on by a block of rows.
    pub tick: &'a (dyn Fn() + Sync),
}

impl Call<'_> {
    /// Runs one item: all rows that see its block of keys, last to first.
    pub(crate) fn item(&self, scratch: &mut Scratch, room: &Room, item: &Item, turns: &Turns) {
        let Item { tile, gather, batch, kv_head, block, .. } = *item;
        let (dim_qk, dim_v) = (self.shapes.dim_qk, self.shapes.dim_v);
        let all_rows = tile.q.len();
        let block_keys = (block * KEYS) as i64..((block + 1) * KEYS).min(gather.keys()) as i64;
        let rows = seeing_rows(tile.band, 0..all_rows as i64, block_keys.clone());
        // Keys that no row sees are not read: they may hold anything.
        let keys = seen_keys(tile.band, rows.clone(), block_keys);
        let n = (keys.end - keys.start) as usize;

        let mut part = room.parts(scratch, n);
        let gathered = keys.start as usize..keys.end as usize;
        pack::rows(self.k, (batch, kv_head), gather.pieces(gathered.clone()), part.k);
        pack::rows(self.v, (batch, kv_head), gather.pieces(gathered.clone()), part.v);
        part.dk.fill(0.0);
        part.dv.fill(0.0);

        for row_block in (rows.start as usize / ROWS..(rows.end as usize).div_ceil(ROWS)).rev() {
            let block_rows = (row_block * ROWS) as i64..((row_block + 1) * ROWS).min(all_rows) as i64;
            let rows = seeing_rows(tile.band, block_rows, keys.clone());
            if rows.is_empty() {
                continue;
            }
            let turn = item.turns + row_block;
            let mut waited = false;
            let per_chunk = heads_per_chunk((rows.end - rows.start) as usize, self.shapes.group);
            for first in (0..self.shapes.group).step_by(per_chunk) {
                let head = kv_head * self.shapes.group + first;
                let heads = head..head + per_chunk.min(self.shapes.group - first);
                self.products(&mut part, batch, &heads, (tile, gather), &rows, &keys);
                if !waited {
                    turns.wait(turn, block);
                    waited = true;
                }
                self.add_dq(&part, batch, &heads, tile.q.start + rows.start as usize, &rows);
            }
            turns.pass(turn, block);
            (self.tick)();
        }

        let mut from = 0;
        for piece in gather.pieces(gathered) {
            for s in piece {
                let at = (batch * self.shapes.kv_rows + s) * self.shapes.kv_heads + kv_head;
                // SAFETY: a wave's tiles share no key row, a tile lists none twice, and its blocks are
                // disjoint: only this item writes this row of this head until the wave is over.
                let (to_dk, to_dv) = unsafe {
                    (
                        self.dk.slice(at * dim_qk..(at + 1) * dim_qk),
                        self.dv.slice(at * dim_v..(at + 1) * dim_v),
                    )
                };
                add(to_dk, &part.dk[from * dim_qk..(from + 1) * dim_qk]);
                add(to_dv, &part.dv[from * dim_v..(from + 1) * dim_v]);
                from += 1;
            }
        }
    }

    /// Adds a (keys, rows) block into the item's dK and dV and leaves its dQ in `part.dq`.
    fn products(
        &self,
        part: &mut Part,
        batch: usize,
        heads: &Range<usize>,
        (tile, gather): (&Tile, &Gather),
        rows: &Range<i64>,
        keys: &Range<i64>,
    ) {
        let (dim_qk, dim_v) = (self.shapes.dim_qk, self.shapes.dim_v);
        let count = (rows.end - rows.start) as usize;
        let columns = columns(count, heads.len());
        self.pack_rows(part, batch, heads, tile.q.start + rows.start as usize, count);

        let seen = seen_keys(tile.band, rows.clone(), keys.clone());
        let n = (seen.end - seen.start) as usize;
        let first = (seen.start - keys.start) as usize;
        let k = &part.k[first * dim_qk..];
        let v = &part.v[first * dim_v..];
        let by_row = |data, dim| Mat { data, rs: 1, cs: dim };
        let transposed = |data| Mat { data, rs: 1, cs: columns };

        // S^T = scale K Q^T and dP^T = V dO^T; rows beyond `n` are not used.
        let few = n.max(FEW);
        let queries = transposed(part.q_t);
        let sizes = (columns, few, dim_qk);
        gemm(sizes, part.p, columns, false, queries, by_row(k, dim_qk), self.scale);
        let douts = transposed(part.dout_t);
        let sizes = (columns, few, dim_v);
        gemm(sizes, part.ds, columns, false, douts, by_row(v, dim_v), 1.0);
        let p = &mut part.p[..n * columns];
        let ds = &mut part.ds[..n * columns];

        let full = sees_all(tile.band, rows.clone(), seen.clone());
        let mask = (!full).then(|| {
            let total = gather.keys() as i64;
            let room = [&mut *part.lo, &mut *part.len];
            mask(tile.band, rows, total, &seen, heads.len(), room)
        });
        self.arch.dispatch(softmax::Backward {
            p: &mut *p,
            ds: &mut *ds,
            keys: n,
            columns,
            mask,
            lse: &part.lse[..columns],
            delta: &part.delta[..columns],
        });

        // dV += P^T dO, dK += scale dS^T Q, dQ = scale dS K.
        let dv = &mut part.dv[first * dim_v..(first + n) * dim_v];
        let sizes = (dim_v, n, columns);
        gemm(sizes, dv, dim_v, true, by_row(part.dout, dim_v), transposed(p), 1.0);
        let dk = &mut part.dk[first * dim_qk..(first + n) * dim_qk];
        let sizes = (dim_qk, n, columns);
        gemm(sizes, dk, dim_qk, true, by_row(part.q, dim_qk), transposed(ds), self.scale);
        let sizes = (dim_qk, columns, n);
        let rhs = Mat { data: ds, rs: columns, cs: 1 };
        gemm(sizes, part.dq, dim_qk, false, by_row(k, dim_qk), rhs, self.scale);
    }

    /// Lays out the rows of Q and dout, as they are and transposed, with their lse and delta. Rows that
    /// see no key become zeros of weight 0, whatever they hold.
    fn pack_rows(&self, part: &mut Part, batch: usize, heads: &Range<usize>, first_row: usize, count: usize) {
        let (dim_qk, dim_v) = (self.shapes.dim_qk, self.shapes.dim_v);
        let columns = columns(count, heads.len());
        let mut column = 0;
        for head in heads.clone() {
            for s in first_row..first_row + count {
                let at = (batch * self.shapes.q_heads + head) * self.shapes.q_rows + s;
                let q = &mut part.q[column * dim_qk..(column + 1) * dim_qk];
                let dout = &mut part.dout[column * dim_v..(column + 1) * dim_v];
                if self.lse[at] == f32::NEG_INFINITY {
                    q.fill(0.0);
                    dout.fill(0.0);
                    part.lse[column] = f32::INFINITY;
                    part.delta[column] = 0.0;
                } else {
                    pack::row(self.q, [batch, s, head], q);
                    pack::row(self.dout, [batch, s, head], dout);
                    part.lse[column] = self.lse[at];
                    part.delta[column] = self.delta[at];
                }
                column += 1;
            }
        }
        part.q[column * dim_qk..columns * dim_qk].fill(0.0);
        part.dout[column * dim_v..columns * dim_v].fill(0.0);
        part.lse[column..columns].fill(f32::INFINITY);
        part.delta[column..columns].fill(0.0);
        pack::transpose(&part.q[..columns * dim_qk], part.q_t, columns, dim_qk);
        pack::transpose(&part.dout[..columns * dim_v], part.dout_t, columns, dim_v);
    }

    /// Adds the dQ of a block of rows. The caller has the turn of these rows.
    fn add_dq(&self, part: &Part, batch: usize, heads: &Range<usize>, first_row: usize, rows: &Range<i64>) {
        let dim = self.shapes.dim_qk;
        let count = (rows.end - rows.start) as usize;
        for (index, head) in heads.clone().enumerate() {
            for row in 0..count {
                let at = (batch * self.shapes.q_rows + first_row + row) * self.shapes.q_heads + head;
                // SAFETY: a wave's tiles share no query row, and within a tile only the holder of the
                // turn of this block of rows writes them.
                let to = unsafe { self.dq.slice(at * dim..(at + 1) * dim) };
                let column = index * count + row;
                add(to, &part.dq[column * dim..(column + 1) * dim]);
            }
        }
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

//! One block of query rows against one tile's keys.

use std::ops::Range;

use pulp::Arch;

use super::columns::{Columns, Heads, Room};
use super::operands::Operands;
use crate::cpu::columns::mask;
use crate::cpu::gemm::{Mat, gemm};
use crate::cpu::memory::{Scratch, Shared};
use crate::cpu::{FEW, KEYS, pack, softmax};
use crate::shapes::Shapes;
use crate::tensor::View;
use crate::tile::{Gather, Tile, seeing_rows, seen_keys, sees_all};

/// What all work items of a call share.
pub(crate) struct Call<'a> {
    pub q: &'a View<'a>,
    pub k: &'a View<'a>,
    pub v: &'a View<'a>,
    pub scale: f32,
    pub shapes: Shapes,
    pub acc: Shared<'a>,
    pub max: Shared<'a>,
    pub sum: Shared<'a>,
    pub arch: Arch,
    /// Tells that a block of rows has got on by a block of keys.
    pub tick: &'a (dyn Fn() + Sync),
}

/// The state of a block's columns, in scratch.
struct Carried<'a> {
    acc: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl Call<'_> {
    /// Attends some rows of a tile, for the heads of one work item, which owns these rows of them.
    #[allow(clippy::too_many_arguments)] // A work item has this many coordinates.
    pub(crate) fn block(
        &self,
        scratch: &mut Scratch,
        room: &Room,
        batch: usize,
        heads: Heads,
        tile: &Tile,
        gather: &Gather,
        rows: &Range<usize>,
    ) {
        let keys = gather.keys() as i64;
        let rows = seeing_rows(tile.band, rows.start as i64..rows.end as i64, 0..keys);
        if rows.is_empty() {
            return;
        }
        let first = tile.q.start + rows.start as usize;
        let columns = Columns::new(heads, first..tile.q.start + rows.end as usize);
        let stride = columns.stride;
        let [queries, acc, max, sum, rescale, lo, len, scores, k, v] = scratch.parts(room.lens());
        let (lo, len) = (bytemuck::cast_slice_mut(lo), bytemuck::cast_slice_mut(len));
        let mut carried = Carried { acc, max, sum };
        self.pack_queries(batch, columns, scores, queries);
        self.load(batch, columns, &mut carried);

        let span = seen_keys(tile.band, rows.clone(), 0..keys);
        let mut from = span.start;
        while from < span.end {
            // Blocks of keys begin at multiples of `KEYS`, wherever the visible keys do.
            let to = span.end.min((from / KEYS as i64 + 1) * KEYS as i64);
            let block = from..to;
            let packed = (&mut *k, &mut *v);
            let gathered = from as usize..to as usize;
            let views = (self.k, self.v);
            let operands = Operands::new(views, (batch, heads.kv), gather, gathered, packed);
            let full = sees_all(tile.band, rows.clone(), block.clone());
            let mask = (!full).then(|| {
                let room = [&mut *lo, &mut *len];
                mask(tile.band, &rows, keys, &block, columns.heads_per_chunk(), room)
            });
            for chunk in 0..columns.chunks {
                let at = columns.of(chunk);
                let dim = self.shapes.dim_qk;
                let queries = &queries[at.start * dim..at.end * dim];
                let rescale = &mut rescale[..stride];
                let n = (to - from) as usize;
                self.weights(scores, queries, &operands, n, stride, mask, &mut carried, at, rescale);
                self.values(scores, &operands, columns, chunk, &mut carried, rescale);
            }
            (self.tick)();
            from = to;
        }
        self.store(batch, columns, &carried);
    }

    /// Scores of a chunk's columns with `n` keys, turned into weights; `rescale` gets the factors of what
    /// was carried.
    #[allow(clippy::too_many_arguments)] // Views of scratch, which is cut up once for a block.
    fn weights(
        &self,
        scores: &mut [f32],
        queries: &[f32],
        operands: &Operands,
        n: usize,
        stride: usize,
        mask: Option<softmax::Mask>,
        carried: &mut Carried,
        at: Range<usize>,
        rescale: &mut [f32],
    ) {
        let (k, k_stride) = operands.k;
        let scores = &mut scores[..operands.rows * stride];
        let lhs = Mat { data: queries, rs: 1, cs: stride };
        let rhs = Mat { data: k, rs: 1, cs: k_stride };
        let sizes = (stride, operands.rows, self.shapes.dim_qk);
        gemm(sizes, scores, stride, false, lhs, rhs, self.scale);
        // Zero keys that pad the block are left with scores of 0, as if weighed 0, and have zero values.
        self.arch.dispatch(softmax::Forward {
            scores,
            keys: n,
            columns: stride,
            mask,
            max: &mut carried.max[at.clone()],
            sum: &mut carried.sum[at],
            rescale,
        });
    }

    /// Rescales what a chunk's columns carried and adds the weighted values.
    fn values(
        &self,
        weights: &[f32],
        operands: &Operands,
        columns: Columns,
        chunk: usize,
        carried: &mut Carried,
        rescale: &[f32],
    ) {
        let dim = self.shapes.dim_v;
        if dim == 0 {
            return;
        }
        let (v, v_stride) = operands.v;
        let (at, used) = (columns.of(chunk), columns.used(chunk));
        let acc = &mut carried.acc[at.start * dim..at.end * dim];
        for (acc, &factor) in acc.chunks_exact_mut(dim).zip(&rescale[..used]) {
            if factor != 1.0 {
                acc.iter_mut().for_each(|x| *x *= factor);
            }
        }
        let lhs = Mat { data: v, rs: 1, cs: v_stride };
        let rhs = Mat { data: weights, rs: columns.stride, cs: 1 };
        gemm((dim, used.max(FEW), operands.rows), acc, dim, true, lhs, rhs, 1.0);
    }

    /// Lays out the queries of all chunks as `[dim][columns]`, columns of padding zero; `rows` is room
    /// for those of a chunk as they come.
    fn pack_queries(&self, batch: usize, columns: Columns, rows: &mut [f32], queries: &mut [f32]) {
        let dim = self.shapes.dim_qk;
        for chunk in 0..columns.chunks {
            let rows = &mut rows[..columns.stride * dim];
            for (head, q_rows, at) in columns.heads(chunk) {
                for (s, column) in q_rows.zip(at) {
                    let row = &mut rows[column * dim..(column + 1) * dim];
                    pack::row(self.q, [batch, s, head], row);
                }
            }
            rows[columns.used(chunk) * dim..].fill(0.0);
            let at = columns.of(chunk);
            let queries = &mut queries[at.start * dim..at.end * dim];
            pack::transpose(rows, queries, columns.stride, dim);
        }
    }

    /// Calls `copy` with the carried state of each head's rows and with the columns that hold it.
    fn each_head(&self, batch: usize, columns: Columns, mut copy: impl FnMut([&mut [f32]; 3], Range<usize>)) {
        let dim = self.shapes.dim_v;
        for chunk in 0..columns.chunks {
            let first = columns.of(chunk).start;
            for (head, rows, at) in columns.heads(chunk) {
                let start = (batch * self.shapes.q_heads + head) * self.shapes.q_rows;
                let rows = start + rows.start..start + rows.end;
                // SAFETY: the work item owns these rows of these heads: a chain holds all blocks of the
                // call that touch them, and items differ in chain, batch entry or heads. `copy` cannot
                // keep the slices.
                let state = unsafe {
                    [
                        self.acc.slice(rows.start * dim..rows.end * dim),
                        self.max.slice(rows.clone()),
                        self.sum.slice(rows),
                    ]
                };
                copy(state, first + at.start..first + at.end);
            }
        }
    }

    /// Brings the carried state of a block's columns into scratch; columns of padding get the identity.
    fn load(&self, batch: usize, columns: Columns, to: &mut Carried) {
        let dim = self.shapes.dim_v;
        for chunk in 0..columns.chunks {
            let at = columns.of(chunk);
            let padding = at.start + columns.used(chunk)..at.end;
            to.acc[padding.start * dim..padding.end * dim].fill(0.0);
            to.max[padding.clone()].fill(f32::NEG_INFINITY);
            to.sum[padding].fill(0.0);
        }
        self.each_head(batch, columns, |[acc, max, sum], at| {
            to.acc[at.start * dim..at.end * dim].copy_from_slice(acc);
            to.max[at.clone()].copy_from_slice(max);
            to.sum[at].copy_from_slice(sum);
        });
    }

    /// The inverse of [`Call::load`].
    fn store(&self, batch: usize, columns: Columns, from: &Carried) {
        let dim = self.shapes.dim_v;
        self.each_head(batch, columns, |[acc, max, sum], at| {
            acc.copy_from_slice(&from.acc[at.start * dim..at.end * dim]);
            max.copy_from_slice(&from.max[at.clone()]);
            sum.copy_from_slice(&from.sum[at]);
        });
    }
}

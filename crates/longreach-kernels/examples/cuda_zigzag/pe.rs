//! What each PE computes.

use crate::buffer::{Buffer, DIM, KV_HEADS, Q_HEADS, scale};
use cudarc::driver::CudaStream;
use longreach_kernels::Tile;
use longreach_kernels::cuda::{
    Context, Memory, State, Sum, backward, backward_scratch, cast, finish, forward, forward_scratch, reset,
};
use longreach_plan::{Band, Edge};
use std::ops::Range;
use std::sync::Arc;

pub const PES: usize = 8;

/// One PE's buffers.
pub struct Pe {
    low: usize,
    chunk: usize,
    q: Buffer,
    dout: Buffer,
    own: [Buffer; 2],
    remote: [Buffer; 2],
    state: [Buffer; 3],
    out: Buffer,
    lse: Buffer,
    dq: Buffer,
    d_own: [Buffer; 2],
    d_remote: [Buffer; 2],
    rounded: [Buffer; 3],
}

impl Pe {
    pub fn new(stream: &Arc<CudaStream>, low: usize, chunk: usize) -> Self {
        let (rows, away) = (2 * chunk, 2 * chunk * (PES - 1));
        let (q, kv) = (rows * Q_HEADS * DIM, KV_HEADS * DIM);
        let seed = low as u64 * 10;
        let new = |bytes| Buffer::new(stream, bytes);
        let normal = |len, i| Buffer::normal(stream, len, seed + i);
        Self {
            low,
            chunk,
            q: normal(q, 0),
            dout: normal(q, 1),
            own: [normal(rows * kv, 2), normal(rows * kv, 3)],
            remote: [normal(away * kv, 4), normal(away * kv, 5)],
            state: [new(4 * q), new(4 * rows * Q_HEADS), new(4 * rows * Q_HEADS)],
            out: new(2 * q),
            lse: new(4 * rows * Q_HEADS),
            dq: new(4 * q),
            d_own: [new(4 * rows * kv), new(4 * rows * kv)],
            d_remote: [new(4 * away * kv), new(4 * away * kv)],
            rounded: [new(2 * q), new(2 * rows * kv), new(2 * rows * kv)],
        }
    }

    /// What the two chunks see of the rows of others, which lie owner by owner, each its two chunks.
    fn remote_rows(&self) -> [Vec<Range<usize>>; 2] {
        let (p, c) = (self.low, self.chunk);
        let lows = (0..p).map(|owner| 2 * owner * c..(2 * owner + 1) * c);
        let later = 2 * p * c..2 * (PES - 1) * c;
        let high = lows.clone().chain(Some(later).filter(|rows| !rows.is_empty())).collect();
        [lows.collect(), high]
    }

    fn state(&self) -> State {
        let [acc, max, sum] = self.state.each_ref().map(|buffer| buffer.memory);
        let shape = [1, 2 * self.chunk, Q_HEADS, DIM];
        State::new(acc, max, sum, shape).expect("a state")
    }
}

/// Calls `each(tiles, whether they are remote)` for both stages of a PE.
fn stages(pe: &Pe, mut each: impl FnMut(&[Tile], bool)) {
    let c = pe.chunk;
    let band = |rows: usize, hi| Band { q: 0..rows as i64, lo: Edge::Fixed(0), hi };
    let (own, causal) = (0..2 * c, band(2 * c, Edge::Diagonal(1)));
    each(&[Tile { batch: 0..1, q: 0..2 * c, kv: std::slice::from_ref(&own), band: &causal }], false);
    let rows = pe.remote_rows();
    let full =
        rows.each_ref().map(|kv| band(c, Edge::Fixed(kv.iter().map(Range::len).sum::<usize>() as i64)));
    let tile =
        |half: usize| Tile { batch: 0..1, q: half * c..(half + 1) * c, kv: &rows[half], band: &full[half] };
    each(&[tile(0), tile(1)], true);
}

pub fn forward_all(cx: &mut Context, pes: &[Pe], scratch: Memory) {
    for pe in pes {
        let rows = 2 * pe.chunk;
        let (q, mut state) = (pe.q.view(rows, Q_HEADS), pe.state());
        reset(cx, &mut state).expect("a reset");
        stages(pe, |tiles, remote| {
            let (kv, rows) = if remote { (&pe.remote, rows * (PES - 1)) } else { (&pe.own, rows) };
            let [k, v] = kv.each_ref().map(|buffer| buffer.view(rows, KV_HEADS));
            forward(cx, &q, &k, &v, scale(), tiles, scratch, &mut state).expect("a forward");
        });
        finish(cx, &state, &pe.out.view(rows, Q_HEADS), pe.lse.memory).expect("an output");
    }
}

pub fn backward_all(cx: &mut Context, pes: &[Pe], scratch: Memory) {
    for pe in pes {
        let rows = 2 * pe.chunk;
        let [q, out, dout] = [&pe.q, &pe.out, &pe.dout].map(|buffer| buffer.view(rows, Q_HEADS));
        let sum = |buffer: &Buffer, rows, heads| {
            let mut sum = Sum::new(buffer.memory, [1, rows, heads, DIM]).expect("a sum");
            sum.clear();
            sum
        };
        let mut dq = sum(&pe.dq, rows, Q_HEADS);
        let mut own = pe.d_own.each_ref().map(|buffer| sum(buffer, rows, KV_HEADS));
        let mut away = pe.d_remote.each_ref().map(|buffer| sum(buffer, rows * (PES - 1), KV_HEADS));
        stages(pe, |tiles, remote| {
            let (kv, [dk, dv], rows) =
                if remote { (&pe.remote, &mut away, rows * (PES - 1)) } else { (&pe.own, &mut own, rows) };
            let [k, v] = kv.each_ref().map(|buffer| buffer.view(rows, KV_HEADS));
            let lse = pe.lse.memory;
            backward(cx, &q, &k, &v, &out, &dout, lse, scale(), tiles, scratch, &mut dq, dk, dv)
                .expect("a backward");
        });
        let [to_q, to_k, to_v] = &pe.rounded;
        let [dk, dv] = &mut own;
        cast(cx, &mut dq, &to_q.view(rows, Q_HEADS)).expect("dq");
        cast(cx, dk, &to_k.view(rows, KV_HEADS)).expect("dk");
        cast(cx, dv, &to_v.view(rows, KV_HEADS)).expect("dv");
    }
}

pub fn scratch(cx: &mut Context, pes: &[Pe]) -> usize {
    let mut most = 0;
    for pe in pes {
        let rows = 2 * pe.chunk;
        let [q, out, dout] = [&pe.q, &pe.out, &pe.dout].map(|buffer| buffer.view(rows, Q_HEADS));
        stages(pe, |tiles, remote| {
            let (kv, rows) = if remote { (&pe.remote, rows * (PES - 1)) } else { (&pe.own, rows) };
            let [k, v] = kv.each_ref().map(|buffer| buffer.view(rows, KV_HEADS));
            most = most.max(forward_scratch(cx, &q, &k, &v, tiles).expect("scratch"));
            most = most.max(backward_scratch(cx, &q, &k, &v, &out, &dout, tiles).expect("scratch"));
        });
    }
    most
}

//! Rates of the kernels on one thread, beside those of their matrix products alone.
//!
//! `cargo run --release --example rates -- [rows] [repeats]`: causal attention, kernels and products
//! measured in turns so that a noisy machine slows both; the medians and the median ratio are printed.

use std::time::{Duration, Instant};

use half::bf16;
use longreach_kernels::{
    Context, Data, State, Tile, View, backward, delta, finish, flops_backward, flops_forward, forward,
    gemm_rate,
};
use longreach_plan::{Band, Edge};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let rows: usize = args.next().unwrap_or(4096);
    let repeats: usize = args.next().unwrap_or(9);
    for (name, dim, heads, kv_heads, half) in [
        ("f32  D 128 ", 128, 1, 1, false),
        ("f32  D 128 8/1", 128, 8, 1, false),
        ("bf16 D 64  ", 64, 2, 2, true),
        ("f32  D 64  ", 64, 2, 2, false),
    ] {
        measure(name, rows, dim, heads, kv_heads, half, repeats);
    }
}

fn measure(name: &str, rows: usize, dim: usize, heads: usize, kv_heads: usize, half: bool, repeats: usize) {
    let values = |heads: usize, seed: u32| -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..rows * heads * dim).map(|_| 1.7 * next()).collect()
    };
    let tensors = [(heads, 1), (kv_heads, 2), (kv_heads, 3), (heads, 4)].map(|(heads, seed)| {
        let values = values(heads, seed);
        let short: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        (values, short, heads)
    });
    let views = tensors.each_ref().map(|(values, short, heads)| {
        let data = if half { Data::Bf16(short) } else { Data::F32(values) };
        View::contiguous(data, [1, rows, *heads, dim]).expect("the data has the view's size")
    });
    let [q, k, v, dout] = &views;
    let band = Band { q: 0..rows as i64, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) };
    let whole = 0..rows;
    let kv = std::slice::from_ref(&whole);
    let tiles = [Tile { batch: 0..1, q: 0..rows, kv, band: &band }];
    let cx = Context { pool: None, tick: &|| () };
    let scale = 1.0 / (dim as f32).sqrt();

    let (mut acc, mut max) = (vec![0.0; rows * heads * dim], vec![0.0; rows * heads]);
    let (mut sum, mut lse, mut row_delta) = (max.clone(), max.clone(), max.clone());
    let (mut out, mut dq) = (acc.clone(), acc.clone());
    let (mut dk, mut dv) = (vec![0.0; rows * kv_heads * dim], vec![0.0; rows * kv_heads * dim]);
    let pairs = (rows * (rows + 1) / 2) as u64;
    let (heads, d) = (heads as u64, dim as u64);
    let mut runs = Vec::new();
    for _ in 0..repeats {
        let gemm = gemm_rate(dim, dim, Duration::from_millis(50));
        let mut state = State { acc: &mut acc, max: &mut max, sum: &mut sum };
        state.reset();
        let start = Instant::now();
        forward(&cx, q, k, v, scale, &tiles, &mut state).expect("the tile fits");
        finish(&cx, &state, [1, rows, heads as usize, dim], &mut out, &mut lse).expect("as above");
        let fw = flops_forward(pairs, heads, d, d) as f64 / start.elapsed().as_secs_f64() / 1e9;
        let start = Instant::now();
        delta(&cx, dout, &out, &mut row_delta).expect("as above");
        backward(&cx, q, k, v, dout, &lse, &row_delta, scale, &tiles, &mut dq, &mut dk, &mut dv)
            .expect("as above");
        let bw = flops_backward(pairs, heads, d, d) as f64 / start.elapsed().as_secs_f64() / 1e9;
        runs.push([gemm.forward, fw, fw / gemm.forward, gemm.backward, bw, bw / gemm.backward]);
    }
    let median = |i: usize| {
        let mut column: Vec<f64> = runs.iter().map(|run| run[i]).collect();
        column.sort_by(f64::total_cmp);
        column[column.len() / 2]
    };
    println!(
        "{name}  forward {:5.1} of {:5.1} GFLOP/s = {:.2}   backward {:5.1} of {:5.1} = {:.2}",
        median(1),
        median(0),
        median(2),
        median(4),
        median(3),
        median(5)
    );
}

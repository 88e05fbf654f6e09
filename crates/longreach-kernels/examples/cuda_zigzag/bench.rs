//! The measurement.

use crate::buffer::{Buffer, DIM, KV_HEADS, Q_HEADS};
use crate::pe::{PES, Pe, backward_all, forward_all, scratch};
use crate::whole::Whole;
use cudarc::driver::{CudaContext, CudaStream, sys};
use longreach_kernels::cuda::{Context, Settings};
use std::sync::Arc;

const ROUNDS: usize = 10;
const WORKSPACE: usize = 4 << 30;

/// Time of `work` on the stream in milliseconds, and the host's for queueing it.
fn timed(stream: &Arc<CudaStream>, work: impl FnOnce()) -> [f64; 2] {
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let queueing = std::time::Instant::now();
    let start = stream.record_event(flags).expect("an event");
    work();
    let end = stream.record_event(flags).expect("an event");
    let queued = queueing.elapsed().as_secs_f64() * 1e3;
    [f64::from(start.elapsed_ms(&end).expect("a time")), queued]
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn run(stream: &Arc<CudaStream>, len: usize) {
    let settings = Settings { workspace: WORKSPACE, deterministic: false };
    let started = std::time::Instant::now();
    let mut cx = Context::new(stream, settings).expect("cuDNN and NVRTC");
    println!("cuDNN {}; kernels ready in {:.2} s", cx.cudnn_version(), started.elapsed().as_secs_f64());
    let mut whole = Whole::new(stream, len);
    let pes: Vec<Pe> = (0..PES).map(|pe| Pe::new(stream, pe, len / (2 * PES))).collect();
    let started = std::time::Instant::now();
    let bytes = scratch(&mut cx, &pes);
    let (plans, time) = (cx.plans(), started.elapsed().as_secs_f64());
    println!("{plans} plans in {time:.2} s; scratch {:.2} GB", bytes as f64 * 1e-9);
    let scratch = Buffer::new(stream, bytes);
    let mut times: [[Vec<f64>; 2]; 4] = Default::default();
    for round in 0..=ROUNDS {
        // In turn first: what comes second finds the GPU warm.
        let mut measured = [[0.0; 2]; 4];
        for pass in [0, 2] {
            for which in [round % 2, 1 - round % 2] {
                measured[pass + which] = timed(stream, || match pass + which {
                    0 => whole.forward(),
                    1 => forward_all(&mut cx, &pes, scratch.memory),
                    2 => whole.backward(),
                    _ => backward_all(&mut cx, &pes, scratch.memory),
                });
            }
        }
        // The first round loads code.
        if round > 0 {
            let all = times.iter_mut().flatten().zip(measured.into_iter().flatten());
            all.for_each(|(times, time)| times.push(time));
        }
    }
    assert_eq!(cx.plans(), plans, "planned again");
    println!("S {len}, {Q_HEADS}:{KV_HEADS} heads, D {DIM}, bf16, P {PES}, medians of {ROUNDS}");
    println!(
        "| pass | whole, ms | tiles of all PEs, ms | ratio | queueing the tiles, ms |\n|---|---|---|---|---|"
    );
    let mut times = times.map(|of| of.map(|mut times| median(&mut times))).into_iter();
    for pass in ["forward", "backward"] {
        let (Some([whole, _]), Some([tiles, queued])) = (times.next(), times.next()) else { return };
        println!("| {pass} | {whole:.2} | {tiles:.2} | {:.3} | {queued:.2} |", tiles / whole);
    }
}

pub fn main() {
    // SAFETY: looks for a library by name.
    let present = unsafe { sys::is_culib_present() };
    if !present || CudaContext::device_count().unwrap_or(0) < 1 {
        eprintln!("SKIPPED cuda_zigzag: it needs an NVIDIA GPU with its driver");
        return;
    }
    let context = CudaContext::new(0).expect("GPU 0");
    println!("{}", context.name().expect("a name"));
    let stream = context.default_stream();
    let lens: Vec<usize> =
        std::env::args().skip(1).map(|len| len.parse().expect("a sequence length")).collect();
    for len in if lens.is_empty() { vec![32768] } else { lens } {
        run(&stream, len);
    }
}

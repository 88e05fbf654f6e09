//! Times the tiles of all PEs of a causal zigzag, one PE after another on one GPU, beside one call of cuDNN on the
//! whole sequence in the same run: `cuda_zigzag [SEQLEN...]`, 32768 if none is given.
//!
//! Each PE attends its own two chunks causally, then each of them its remote keys in one full tile. Counted: the calls,
//! gathers, additions in float32, a state's reset, the last normalisation and rounding. Not counted: gets, and
//! the owners' additions of what others return.

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("cuda_zigzag needs Linux with an NVIDIA GPU");
}

#[cfg(target_os = "linux")]
mod linux {
    use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
    use half::bf16;
    use longreach_kernels::cuda::cudnn::{
        self, Binding, Bound, Element, Handle, Plan, Problem, Rows, Scalar,
    };
    use longreach_kernels::cuda::{
        Context, Memory, Settings, State, Sum, View, backward, backward_scratch, cast, finish, forward,
        forward_scratch, reset,
    };
    use longreach_kernels::{DType, Tile};
    use longreach_plan::{Band, Edge};
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use rand_distr::StandardNormal;
    use std::ops::Range;
    use std::sync::Arc;

    const PES: usize = 8;
    const Q_HEADS: usize = 64;
    const KV_HEADS: usize = 8;
    const DIM: usize = 128;
    const ROUNDS: usize = 10;
    const WORKSPACE: usize = 4 << 30;

    /// Memory of the GPU with normal numbers, or as it comes.
    struct Buffer {
        slice: CudaSlice<u8>,
        memory: Memory,
    }

    impl Buffer {
        fn new(stream: &Arc<CudaStream>, bytes: usize) -> Self {
            let slice = stream.alloc_zeros::<u8>(bytes.max(256)).expect("memory");
            // SAFETY: the slice lives until the program's end.
            let memory = unsafe { Memory::new(slice.device_ptr(stream).0, bytes) };
            Self { slice, memory }
        }

        /// Normal numbers; a block of them over and over, rotated so that no two blocks begin alike.
        fn normal(stream: &Arc<CudaStream>, len: usize, seed: u64) -> Self {
            let mut random = StdRng::seed_from_u64(seed);
            let block: Vec<bf16> =
                (0..1_000_003).map(|_| bf16::from_f32(random.sample(StandardNormal))).collect();
            let all: Vec<u8> =
                block.iter().cycle().take(len).flat_map(|x| x.to_bits().to_le_bytes()).collect();
            let mut buffer = Self::new(stream, 2 * len);
            stream.memcpy_htod(&all, &mut buffer.slice).expect("a copy");
            buffer
        }

        fn view(&self, rows: usize, heads: usize) -> View {
            View::contiguous(self.memory, DType::Bf16, [1, rows, heads, DIM]).expect("a view")
        }
    }

    /// One PE's buffers.
    struct Pe {
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
        fn new(stream: &Arc<CudaStream>, low: usize, chunk: usize) -> Self {
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

    /// One call of cuDNN each way.
    struct Whole {
        handle: Handle,
        forward: (Plan, Vec<(cudnn::TensorId, Binding)>),
        backward: (Plan, Vec<(cudnn::TensorId, Binding)>),
        workspace: u64,
        _buffers: Vec<Buffer>,
    }

    impl Whole {
        fn new(stream: &Arc<CudaStream>, len: usize) -> Self {
            let handle = Handle::new(stream).expect("cuDNN");
            let rows = |heads| Rows::contiguous(len as i64, heads as i64, DIM as i64);
            let (q, kv) = (rows(Q_HEADS), rows(KV_HEADS));
            let problem = Problem {
                batch: 1,
                q_heads: Q_HEADS as i64,
                kv_heads: KV_HEADS as i64,
                q_len: len as i64,
                kv_len: len as i64,
                head_dim: DIM as i64,
                value_dim: DIM as i64,
                element: Element::Bf16,
                q,
                k: kv,
                v: kv,
                o: q,
                d_o: q,
                bound: Bound { left: None, right: Some(0) },
                deterministic: false,
            };
            let (f, b) = (cudnn::forward(&problem), cudnn::backward(&problem));
            let forward = Plan::new(&handle, &f.graph, "the whole forward", usize::MAX).expect("a plan");
            let backward = Plan::new(&handle, &b.graph, "the whole backward", usize::MAX).expect("a plan");
            let (q_len, kv_len) = (len * Q_HEADS * DIM, len * KV_HEADS * DIM);
            let mut buffers = Vec::new();
            let mut keep = |buffer: Buffer| {
                let address = buffer.memory.address();
                buffers.push(buffer);
                Binding::Memory(address)
            };
            let normal = |len, seed| Buffer::normal(stream, len, seed);
            let new = |bytes| Buffer::new(stream, bytes);
            let (q, k, v) = (keep(normal(q_len, 91)), keep(normal(kv_len, 92)), keep(normal(kv_len, 93)));
            let (o, d_o, lse) = (keep(new(2 * q_len)), keep(normal(q_len, 94)), keep(new(4 * len * Q_HEADS)));
            let scale = Binding::Value(Scalar::F32((DIM as f32).powf(-0.5)));
            let mut forwards = vec![(f.q, q), (f.k, k), (f.v, v), (f.o, o), (f.lse, lse), (f.scale, scale)];
            forwards.extend(f.mask.bindings(problem.bound));
            let one = Binding::Value(Scalar::F32(1.0));
            let mut backwards = vec![(b.q, q), (b.k, k), (b.v, v), (b.o, o), (b.d_o, d_o), (b.lse, lse)];
            backwards.extend([(b.scale, scale), (b.one, one), (b.row_sums, keep(new(4 * len * Q_HEADS)))]);
            backwards.extend(b.dq_sum.map(|id| (id, keep(new(4 * q_len)))));
            let (dq, dk, dv) = (keep(new(2 * q_len)), keep(new(2 * kv_len)), keep(new(2 * kv_len)));
            backwards.extend([(b.dq, dq), (b.dk, dk), (b.dv, dv)]);
            backwards.extend(b.mask.bindings(problem.bound));
            let Binding::Memory(workspace) = keep(new(forward.workspace().max(backward.workspace()))) else {
                unreachable!("an address was kept")
            };
            Self {
                handle,
                forward: (forward, forwards),
                backward: (backward, backwards),
                workspace,
                _buffers: buffers,
            }
        }

        fn forward(&mut self) {
            let (plan, bindings) = &self.forward;
            // SAFETY: the buffers are of the problem's sizes and live.
            unsafe { plan.execute(&mut self.handle, bindings, self.workspace) }.expect("a forward");
        }

        fn backward(&mut self) {
            let (plan, bindings) = &self.backward;
            // SAFETY: as above.
            unsafe { plan.execute(&mut self.handle, bindings, self.workspace) }.expect("a backward");
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
        let tile = |half: usize| Tile {
            batch: 0..1,
            q: half * c..(half + 1) * c,
            kv: &rows[half],
            band: &full[half],
        };
        each(&[tile(0), tile(1)], true);
    }

    fn forward_all(cx: &mut Context, pes: &[Pe], scratch: Memory) {
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

    fn backward_all(cx: &mut Context, pes: &[Pe], scratch: Memory) {
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
                let (kv, [dk, dv], rows) = if remote {
                    (&pe.remote, &mut away, rows * (PES - 1))
                } else {
                    (&pe.own, &mut own, rows)
                };
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

    fn scale() -> f32 {
        (DIM as f32).powf(-0.5)
    }

    fn scratch(cx: &mut Context, pes: &[Pe]) -> usize {
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
}

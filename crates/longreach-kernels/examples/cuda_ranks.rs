//! What splitting costs in the kernels: causal attention as 8 virtual PEs compute it (zigzag, two stages: their own
//! rows, then all others at once), one after the other, beside one call of cuDNN on the whole sequence in turn with it.
//!
//! `cuda_ranks [TOKENS]...` on a machine with an NVIDIA GPU, cuDNN and NVRTC. Transfers between PEs are not in it.

// Tiles list ranges of keys, here one.
#![allow(clippy::single_range_in_vec_init)]

#[cfg(target_os = "linux")]
mod bench {
    use cudarc::driver::sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
    use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
    use longreach_kernels::Tile;
    use longreach_kernels::cuda::cudnn::{
        Binding, Bound, Handle, Plan, Problem, Rows, Scalar, backward, forward,
    };
    use longreach_kernels::cuda::{Attention, Element, Gradients, Operands, Scratch, State};
    use longreach_plan::{Band, Edge};
    use std::ops::Range;
    use std::sync::Arc;

    const HEADS: usize = 64;
    const KV_HEADS: usize = 8;
    const DIM: usize = 128;
    const PES: usize = 8;
    const ROUNDS: usize = 7;
    const WORKSPACE: usize = 4 << 30;
    const SCALE: f32 = 0.088_388_35;

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    /// 16-bit numbers about N(0,1): random ones, again and again.
    fn random(stream: &Arc<CudaStream>, len: usize, seed: u64) -> Result<CudaSlice<u16>> {
        use rand::{RngExt, SeedableRng};
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let piece: Vec<u16> = (0..1usize << 22)
            .map(|_| half::bf16::from_f32(random.sample::<f32, _>(rand_distr::StandardNormal)).to_bits())
            .collect();
        let mut memory = stream.alloc_zeros::<u16>(len)?;
        for start in (0..len).step_by(piece.len()) {
            let end = (start + piece.len()).min(len);
            stream.memcpy_htod(&piece[..end - start], &mut memory.slice_mut(start..end))?;
        }
        Ok(memory)
    }

    fn milliseconds(stream: &Arc<CudaStream>, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let begin = stream.record_event(Some(CU_EVENT_DEFAULT))?;
        work()?;
        let end = stream.record_event(Some(CU_EVENT_DEFAULT))?;
        end.synchronize()?;
        Ok(f64::from(begin.elapsed_ms(&end)?))
    }

    fn median(mut times: Vec<f64>) -> f64 {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    /// Tiles of a PE over the rows of one stage: query rows, key rows, who sees what.
    struct Stage {
        kv_rows: usize,
        tiles: Vec<(Range<usize>, [Range<usize>; 1], Band)>,
    }

    impl Stage {
        fn tiles(&self) -> Vec<Tile<'_>> {
            self.tiles.iter().map(|(q, kv, band)| Tile { batch: 0..1, q: q.clone(), kv, band }).collect()
        }
    }

    /// Chunks `rank` and `2 PES - 1 - rank`: first over each other, then over all that stands ahead of them.
    fn stages(rank: usize, chunk: usize) -> [Stage; 2] {
        let band = |rows: usize, hi| Band { q: 0..rows as i64, lo: Edge::Fixed(0), hi };
        let full = |keys: usize| band(chunk, Edge::Fixed(keys as i64));
        let (own, first, second) = (2 * chunk, rank * chunk, (2 * PES - 2 - rank) * chunk);
        let mut remote = vec![(chunk..own, [0..second], full(second))];
        if first > 0 {
            remote.push((0..chunk, [0..first], full(first)));
        }
        let causal = band(own, Edge::Diagonal(1));
        [
            Stage { kv_rows: own, tiles: vec![(0..own, [0..own], causal)] },
            Stage { kv_rows: second, tiles: remote },
        ]
    }

    pub fn run(tokens: usize) -> Result<()> {
        let context = CudaContext::new(0)?;
        // SAFETY: this program orders its work by one stream.
        unsafe { context.disable_event_tracking() };
        let stream = context.default_stream();
        let chunk = tokens / (2 * PES);
        let at = |memory: &CudaSlice<u16>| memory.device_ptr(&stream).0;
        let q = random(&stream, tokens * HEADS * DIM, 1)?;
        let d_o = random(&stream, tokens * HEADS * DIM, 2)?;
        let k = random(&stream, tokens * KV_HEADS * DIM, 3)?;
        let v = random(&stream, tokens * KV_HEADS * DIM, 4)?;
        let o = stream.alloc_zeros::<u16>(tokens * HEADS * DIM)?;
        let [dq, dk, dv] = [&q, &k, &v].map(|like| stream.alloc_zeros::<u16>(like.len()));
        let (dq, dk, dv) = (dq?, dk?, dv?);
        let floats = |len: usize| stream.alloc_zeros::<f32>(len);
        let f32_at = |memory: &CudaSlice<f32>| memory.device_ptr(&stream).0;
        let (lse, row_sums, dq_sum) =
            (floats(HEADS * tokens)?, floats(HEADS * tokens)?, floats(tokens * HEADS * DIM)?);

        // One call on the whole.
        let size = tokens as i64;
        let (hq, hk, d) = (HEADS as i64, KV_HEADS as i64, DIM as i64);
        let problem = Problem {
            batch: 1,
            q_heads: hq,
            kv_heads: hk,
            q_len: size,
            kv_len: size,
            head_dim: d,
            value_dim: d,
            element: Element::Bf16,
            q: Rows::contiguous(size, hq, d),
            k: Rows::contiguous(size, hk, d),
            v: Rows::contiguous(size, hk, d),
            o: Rows::contiguous(size, hq, d),
            bound: Bound { left: None, right: Some(0) },
        };
        let mut handle = Handle::new(&stream)?;
        let (f, b) = (forward(&problem), backward(&problem));
        let (f_plan, b_plan) = (
            Plan::new(&handle, &f.graph, "the whole", WORKSPACE)?,
            Plan::new(&handle, &b.graph, "the whole", WORKSPACE)?,
        );
        let room = stream.alloc_zeros::<u8>(f_plan.workspace().max(b_plan.workspace()).max(16))?;
        let room = room.device_ptr(&stream).0;
        let number = |value| Binding::Value(Scalar::F32(value));
        let mut f_bindings = vec![
            (f.q, Binding::Memory(at(&q))),
            (f.k, Binding::Memory(at(&k))),
            (f.v, Binding::Memory(at(&v))),
            (f.scale, number(SCALE)),
            (f.o, Binding::Memory(at(&o))),
            (f.lse, Binding::Memory(f32_at(&lse))),
        ];
        f_bindings.extend(f.mask.bindings(problem.bound));
        let mut b_bindings = vec![
            (b.q, Binding::Memory(at(&q))),
            (b.k, Binding::Memory(at(&k))),
            (b.v, Binding::Memory(at(&v))),
            (b.o, Binding::Memory(at(&o))),
            (b.d_o, Binding::Memory(at(&d_o))),
            (b.lse, Binding::Memory(f32_at(&lse))),
            (b.scale, number(SCALE)),
            (b.one, number(1.0)),
            (b.row_sums, Binding::Memory(f32_at(&row_sums))),
            (b.dq_sum, Binding::Memory(f32_at(&dq_sum))),
            (b.dq, Binding::Memory(at(&dq))),
            (b.dk, Binding::Memory(at(&dk))),
            (b.dv, Binding::Memory(at(&dv))),
        ];
        b_bindings.extend(b.mask.bindings(problem.bound));

        // The same as 8 PEs do it.
        let mut attention = Attention::new(&stream, Element::Bf16, WORKSPACE)?;
        let own = 2 * chunk;
        let [acc, sums_q] = [floats(own * HEADS * DIM)?, floats(own * HEADS * DIM)?];
        let (max, sum, own_lse) = (floats(own * HEADS)?, floats(own * HEADS)?, floats(own * HEADS)?);
        let (sums_k, sums_v) = (floats(tokens * KV_HEADS * DIM)?, floats(tokens * KV_HEADS * DIM)?);
        let rounded = stream.alloc_zeros::<u16>(own * HEADS * DIM)?;
        let state = State { acc: f32_at(&acc), max: f32_at(&max), sum: f32_at(&sum) };
        let ranks: Vec<[Stage; 2]> = (0..PES).map(|rank| stages(rank, chunk)).collect();
        let operands = |kv_rows| Operands {
            q: at(&q),
            k: at(&k),
            v: at(&v),
            batch: 1,
            q_rows: own,
            kv_rows,
            q_heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: DIM,
            value_dim: DIM,
            element: Element::Bf16,
        };
        let mut bytes = 0;
        for stage in ranks.iter().flatten() {
            let (operands, tiles) = (operands(stage.kv_rows), stage.tiles());
            bytes = bytes.max(attention.forward_scratch(&operands, &tiles)?);
            bytes = bytes.max(attention.backward_scratch(&operands, &tiles)?);
        }
        let scratch = stream.alloc_zeros::<u8>(bytes)?;
        let scratch = Scratch { address: scratch.device_ptr(&stream).0, len: bytes };
        let gradients = Gradients {
            o: at(&rounded),
            d_o: at(&d_o),
            lse: f32_at(&own_lse),
            dq: f32_at(&sums_q),
            dk: f32_at(&sums_k),
            dv: f32_at(&sums_v),
        };

        let mut rounds: Vec<[f64; 4]> = Vec::new();
        for _ in 0..=ROUNDS {
            // SAFETY: all memory is as large as the shapes say and outlives the stream's work, which is waited for.
            let whole_forward =
                milliseconds(&stream, || Ok(unsafe { f_plan.execute(&mut handle, &f_bindings, room) }?))?;
            // SAFETY: as above.
            let whole_backward =
                milliseconds(&stream, || Ok(unsafe { b_plan.execute(&mut handle, &b_bindings, room) }?))?;
            let forward = milliseconds(&stream, || {
                for stages in &ranks {
                    // SAFETY: as above.
                    unsafe {
                        attention.reset(&operands(own), state)?;
                        for stage in stages {
                            let operands = operands(stage.kv_rows);
                            attention.forward(&operands, &stage.tiles(), SCALE, state, scratch)?;
                        }
                        attention.finish(&operands(own), state, 0, gradients.o, gradients.lse)?;
                    }
                }
                Ok(())
            })?;
            let backward = milliseconds(&stream, || {
                for stage in ranks.iter().flatten() {
                    let operands = operands(stage.kv_rows);
                    // SAFETY: as above.
                    unsafe { attention.backward(&operands, &stage.tiles(), SCALE, gradients, scratch)? };
                }
                Ok(())
            })?;
            rounds.push([whole_forward, forward, whole_backward, backward]);
        }
        // The first round pays for what is done once.
        let of = |i: usize| median(rounds[1..].iter().map(|round| round[i]).collect());
        let ratio =
            |a: usize, b: usize| median(rounds[1..].iter().map(|round| round[a] / round[b]).collect());
        println!(
            "| {tokens} | {:.2} | {:.2} | {:.3} | {:.2} | {:.2} | {:.3} |",
            of(0),
            of(1),
            ratio(1, 0),
            of(2),
            of(3),
            ratio(3, 2)
        );
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| tokens | whole forward, ms | 8 PEs, ms | ratio | whole backward, ms | 8 PEs, ms | ratio |");
    println!("|---|---|---|---|---|---|---|");
    let tokens = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<usize>, _>>()?;
    tokens.into_iter().try_for_each(bench::run)
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("this measures NVIDIA GPUs on Linux");
}

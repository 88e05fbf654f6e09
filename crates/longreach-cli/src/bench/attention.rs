//! `longreach bench attention`: the engine's rate beside that of the matrix products it is made of.

use super::gpu;
use crate::args::{BenchArgs, BenchDtype, Transport};
use crate::dout::{Stream, normal};
use crate::error::{Error, status};
use crate::input::Sizes;
use crate::mask::{Asked, Lengths};
use crate::progress::Progress;
use crate::request::{Problem, threads};
use crate::run::{self, Way};
use crate::stats::{Pass, median};
use crate::stdout;
use crate::table::{Table, milliseconds};
use longreach::{Device, Layout};
use longreach_kernels::{DType, GemmRate, gemm_rate};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Rounds of engine and matrix products in turn: at least this many,
const FEWEST_ROUNDS: usize = 3;
/// and more until this much time has passed.
const LEAST_TIME: Duration = Duration::from_secs(4);
/// How long the products of each pass run in a round.
const GEMM_TIME: Duration = Duration::from_millis(250);

/// Runs the benchmark; returns the exit status.
pub fn attention(args: BenchArgs) -> Result<u8, Error> {
    let problem = problem(&args)?;
    let progress = Progress::new();
    if let Device::Cuda(_) = problem.device {
        return gpu::attention(&args, &problem, &progress);
    }
    let what = format!("attention on {} PEs x {} threads", problem.pes, problem.threads);
    let rounds = progress.step(&what, || rounds(&problem, &progress))?;
    let forward = Rate::of(&rounds, |round| Some((round.forward, round.gemm.forward)));
    let backward = problem
        .dout
        .as_ref()
        .map(|_| Rate::of(&rounds, |round| Some((round.backward?, round.gemm.backward))));
    let text = if args.json {
        format!("{}\n", object(&args, &problem, rounds.len(), &forward, backward.as_ref()))
    } else {
        table(&problem, rounds.len(), &forward, backward.as_ref())
    };
    stdout::print(&text)?;
    Ok(status::DONE)
}

fn problem(args: &BenchArgs) -> Result<Problem, Error> {
    let kv_heads = args.kv_heads.unwrap_or(args.q_heads);
    if !args.q_heads.is_multiple_of(kv_heads) {
        let why = format!("does not divide the {} of --q-heads", args.q_heads);
        return Err(Error::bad("--kv-heads", kv_heads.to_string(), why));
    }
    let dtype = match args.dtype {
        BenchDtype::F32 => DType::F32,
        BenchDtype::F16 => DType::F16,
        BenchDtype::Bf16 => DType::Bf16,
    };
    let sizes = Sizes {
        dtype,
        batch: 1,
        q_len: args.seqlen,
        kv_len: args.seqlen,
        q_heads: args.q_heads,
        kv_heads,
        head_dim: args.head_dim,
        value_dim: args.head_dim,
    };
    check_size(&sizes)?;
    let lengths = Lengths { batch: 1, q_len: args.seqlen, kv_len: args.seqlen };
    let asked = Asked { shape: &args.mask, kv_documents: None, bands: None };
    let (mask, bands) = asked.mask(|| Ok(None), lengths)?;
    let tensor = |stream, heads| normal(0, stream, dtype, [1, args.seqlen, heads, args.head_dim]);
    Ok(Problem {
        q: tensor(Stream::Q, args.q_heads)?,
        k: tensor(Stream::K, kv_heads)?,
        v: tensor(Stream::V, kv_heads)?,
        dout: if args.backward { Some(tensor(Stream::Dout, args.q_heads)?) } else { None },
        sizes,
        mask,
        bands,
        scale: (args.head_dim as f64).powf(-0.5),
        pes: args.pes,
        transport: Transport::Threads,
        device: args.device.device(),
        deterministic: false,
        serialize: args.serialize_pes,
        get_bandwidth: args.get_bandwidth,
        threads: threads(args.threads, args.pes, Transport::Threads)?,
        layout: Layout::Zigzag,
        stages: args.stages,
        memory: None,
        deadline: Duration::from_secs(60),
    })
}

/// Refuses tensors that no process has the addresses for. What there is no memory for is found when they are made.
fn check_size(sizes: &Sizes) -> Result<(), Error> {
    const MOST_BYTES: u128 = 1 << 47;
    let Sizes { q_len: tokens, q_heads, kv_heads, head_dim, .. } = *sizes;
    let heads = q_heads as u128 + 2 * kv_heads as u128;
    let bytes = heads * tokens as u128 * head_dim as u128 * sizes.dtype.size() as u128;
    if bytes <= MOST_BYTES {
        return Ok(());
    }
    let given = format!("{tokens} with --q-heads {q_heads}, --kv-heads {kv_heads} and --head-dim {head_dim}");
    let why = format!(
        "q, k and v have {bytes} bytes, expected at most {MOST_BYTES}, for which there are addresses"
    );
    Err(Error::bad("--seqlen", given, why))
}

/// One turn of the engine and of the matrix products.
struct Round {
    forward: Pass,
    backward: Option<Pass>,
    gemm: GemmRate,
}

fn rounds(problem: &Problem, progress: &Progress) -> Result<Vec<Round>, Error> {
    // The first run pays for memory that is touched for the first time.
    let way = Way::asked(problem, 1);
    run::run(problem, &way, progress)?;
    let begin = Instant::now();
    let mut rounds = Vec::new();
    while rounds.len() < FEWEST_ROUNDS || begin.elapsed() < LEAST_TIME {
        let gemm = gemm_on(problem.pes * problem.threads, &problem.sizes);
        let median = run::run(problem, &way, progress)?.median();
        rounds.push(Round { forward: median.forward, backward: median.backward, gemm });
    }
    Ok(rounds)
}

/// The rate of the matrix products on as many threads as the engine computes on, each with its own matrices.
fn gemm_on(threads: usize, sizes: &Sizes) -> GemmRate {
    let rates: Vec<GemmRate> = std::thread::scope(|scope| {
        let rate = || gemm_rate(sizes.head_dim, sizes.value_dim, GEMM_TIME);
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(rate)).collect();
        let own = rate();
        others.into_iter().filter_map(|thread| thread.join().ok()).chain([own]).collect()
    });
    GemmRate {
        forward: rates.iter().map(|rate| rate.forward).sum(),
        backward: rates.iter().map(|rate| rate.backward).sum(),
    }
}

/// Medians over the rounds.
struct Rate {
    seconds: f64,
    gflops: f64,
    gemm_gflops: f64,
    share: f64,
}

impl Rate {
    fn of(rounds: &[Round], of: impl Fn(&Round) -> Option<(Pass, f64)>) -> Self {
        let rounds: Vec<_> = rounds.iter().filter_map(of).collect();
        let middle = |of: fn(&(Pass, f64)) -> f64| median(rounds.iter().map(of).collect());
        Self {
            seconds: middle(|(pass, _)| pass.seconds),
            gflops: middle(|(pass, _)| pass.gflops()),
            gemm_gflops: middle(|(_, gemm)| *gemm),
            // Of each round's pair, so that a machine that slows down for a while slows both.
            share: middle(|(pass, gemm)| if *gemm > 0.0 { pass.gflops() / gemm } else { 0.0 }),
        }
    }

    fn json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "gflops": self.gflops,
            "gemm_gflops": self.gemm_gflops,
            "share": self.share,
        })
    }
}

fn object(
    args: &BenchArgs,
    problem: &Problem,
    rounds: usize,
    forward: &Rate,
    backward: Option<&Rate>,
) -> Value {
    json!({
        "seqlen": args.seqlen,
        "q_heads": problem.sizes.q_heads,
        "kv_heads": problem.sizes.kv_heads,
        "head_dim": args.head_dim,
        "dtype": problem.sizes.dtype.name(),
        "mask": problem.mask.to_string(),
        "pes": problem.pes,
        "threads": problem.threads,
        "rounds": rounds,
        "forward": forward.json(),
        "backward": backward.map(Rate::json),
    })
}

fn table(problem: &Problem, rounds: usize, forward: &Rate, backward: Option<&Rate>) -> String {
    let sizes = &problem.sizes;
    let mut table = Table::default();
    table.line(["", "time", "GFLOP/s", "GEMM GFLOP/s", "share"]);
    for (name, rate) in [("forward", Some(forward)), ("backward", backward)] {
        if let Some(rate) = rate {
            table.line([
                name.to_owned(),
                milliseconds(rate.seconds),
                format!("{:.1}", rate.gflops),
                format!("{:.1}", rate.gemm_gflops),
                format!("{:.1} %", rate.share * 100.0),
            ]);
        }
    }
    format!(
        "{} tokens, heads {}/{}, dim {}, {}, mask {}, {} PEs x {} threads, medians of {rounds} rounds\n\n{}",
        sizes.q_len,
        sizes.q_heads,
        sizes.kv_heads,
        sizes.head_dim,
        sizes.dtype,
        problem.mask,
        problem.pes,
        problem.threads,
        table.text()
    )
}

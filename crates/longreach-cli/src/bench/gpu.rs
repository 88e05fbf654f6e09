//! `longreach bench attention --device cuda`: all PEs beside one call of cuDNN on the whole sequence, in turns.

use super::whole::Whole;
use crate::args::{BenchArgs, MaskKind};
use crate::error::{Error, status};
use crate::progress::Progress;
use crate::request::Problem;
use crate::run::{Planned, Way};
use crate::stats::median;
use crate::stdout;
use crate::table::{Table, milliseconds};
use longreach::{
    ContextParallel, Gpu, GpuTensor, Kind, Options, Precision, Statistics, Tensor, World, shard,
};
use longreach_kernels::DType;
use serde_json::{Value, json};

/// Rounds that count, of PEs and of the whole; half of them begin with the one, half with the other.
const ROUNDS: usize = 10;
/// Rounds before them, in which plans are made and code is loaded.
const WARM: usize = 2;

/// Runs the benchmark; returns the exit status.
pub fn attention(args: &BenchArgs, problem: &Problem, progress: &Progress) -> Result<u8, Error> {
    if problem.sizes.dtype == DType::F32 {
        return Err(Error::bad("--dtype", "f32", "GPUs take bf16 and f16: add --dtype bf16"));
    }
    if args.mask.window.is_some() || args.mask.documents.is_some() {
        let why = "are not what one call of cuDNN computes: leave them out with --device cuda";
        return Err(Error::bad("--window and --documents", "the mask", why));
    }
    let way = Way::asked(problem, 1);
    let planned = Planned::new(problem, &way)?;
    let what = format!("attention on {} PEs on GPUs", problem.pes);
    let failed = |error: longreach::Error| Error::Run(error.to_string());
    let measured = progress.step(&what, || measure(args, problem, &planned).map_err(failed))?;
    let object = object(args, problem, &measured).map_err(failed)?;
    let text = if args.json { format!("{object}\n") } else { table(&object) };
    stdout::print(&text)?;
    Ok(status::DONE)
}

/// What one PE did in a call, in seconds.
#[derive(Clone, Copy, Default)]
struct Times {
    start: f64,
    end: f64,
    tiles: f64,
    merges: f64,
    gets: f64,
    /// The compute stream waiting for arrivals.
    waits: f64,
    stages: usize,
}

impl Times {
    fn of(stats: &Statistics) -> Self {
        let sum = |role: &str, kinds: &[Kind]| {
            let spans = stats.spans.iter().filter(|span| span.stream.split('@').next() == Some(role));
            spans.filter(|span| kinds.contains(&span.label.kind)).map(|span| span.end - span.start).sum()
        };
        Self {
            start: stats.start,
            end: stats.end,
            tiles: sum("compute", &[Kind::Tile]),
            merges: sum("compute", &[Kind::Merge]),
            gets: sum("comm", &[Kind::Get]),
            waits: sum("compute", &[Kind::Wait]),
            stages: stats.stages,
        }
    }
}

/// Rounds of one PE: its forward and backward, and of PE 0 the whole.
type Rounds = Vec<([Times; 2], Option<[f64; 2]>)>;

fn measure(args: &BenchArgs, problem: &Problem, planned: &Planned) -> Result<Vec<Rounds>, longreach::Error> {
    let options = Options { precision: Precision::AsInputs, ..planned.options().clone() };
    let (queries, keys) = planned.shards();
    World::threads(problem.pes)?.run(|pe| {
        let team = pe.team()?;
        let gpu = Gpu::open(pe.number() % Gpu::count()?.max(1))?;
        let cp = ContextParallel::new(&team, &options)?;
        let part = |tensor: &crate::tensors::Tensor, shards| -> Result<GpuTensor, longreach::Error> {
            let part: Tensor = shard(&tensor.view(), shards, pe.number())?;
            GpuTensor::upload(&gpu, &part.view())
        };
        let (q, k, v) = (part(&problem.q, queries)?, part(&problem.k, keys)?, part(&problem.v, keys)?);
        let dout = problem.dout.as_ref().unwrap_or(&problem.q);
        let mut one = match pe.number() {
            0 => {
                let inputs = [&problem.q, &problem.k, &problem.v, dout];
                let [q, k, v, d] = inputs.map(|tensor| GpuTensor::upload(&gpu, &tensor.view()));
                let causal = args.mask.mask != Some(MaskKind::Full);
                Some(Whole::new(&gpu, &problem.sizes, causal, problem.scale, [q?, k?, v?, d?])?)
            }
            _ => None,
        };
        let dout = part(dout, queries)?;
        let mut rounds = Rounds::new();
        for round in 0..WARM + ROUNDS {
            let mut whole = None;
            for turn in [round % 2, 1 - round % 2] {
                if turn == 0 {
                    whole = one.as_mut().map(Whole::times).transpose()?;
                    continue;
                }
                team.barrier()?;
                let forward = cp.forward(&q, &k, &v, planned.attention())?;
                let ahead = Times::of(&forward.saved.statistics()?);
                let mut back = Times::default();
                if problem.dout.is_some() {
                    team.barrier()?;
                    back = Times::of(&forward.saved.backward(&dout)?.statistics()?);
                }
                rounds.push(([ahead, back], None));
                team.barrier()?;
            }
            if let Some(last) = rounds.last_mut() {
                last.1 = whole;
            }
        }
        rounds.drain(..WARM);
        cp.free()?;
        Ok::<_, longreach::Error>(rounds)
    })
}

/// A pass over all PEs and rounds.
fn pass(measured: &[Rounds], pass: usize) -> Value {
    let rounds = 0..ROUNDS;
    let of_pe = |pe: usize, round: usize| measured[pe][round].0[pass];
    let pes = 0..measured.len();
    let makespan = |round: usize| {
        let start = pes.clone().map(|pe| of_pe(pe, round).start).fold(f64::MAX, f64::min);
        pes.clone().map(|pe| of_pe(pe, round).end).fold(0.0, f64::max) - start
    };
    let whole = |round: usize| measured[0][round].1.map_or(f64::NAN, |times| times[pass]);
    let total = |of: fn(&Times) -> f64| {
        median(rounds.clone().map(|round| pes.clone().map(|pe| of(&of_pe(pe, round))).sum()).collect())
    };
    json!({
        "seconds": median(rounds.clone().map(makespan).collect()),
        "whole_seconds": median(rounds.clone().map(whole).collect()),
        // Of each round's pair, so that a GPU that slows down for a while slows both.
        "ratio": median(rounds.clone().map(|round| makespan(round) / whole(round)).collect()),
        "tile_seconds": total(|times| times.tiles),
        "merge_seconds": total(|times| times.merges),
        "get_seconds": total(|times| times.gets),
        "exposed_seconds": total(|times| times.waits),
        "stages": pes.map(|pe| of_pe(pe, 0).stages).max(),
    })
}

fn object(args: &BenchArgs, problem: &Problem, measured: &[Rounds]) -> Result<Value, longreach::Error> {
    let sizes = &problem.sizes;
    Ok(json!({
        "device": "cuda",
        "gpu": Gpu::open(0)?.name()?,
        "gpus": Gpu::count()?,
        "seqlen": args.seqlen,
        "q_heads": sizes.q_heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "dtype": sizes.dtype.name(),
        "mask": problem.mask.to_string(),
        "pes": problem.pes,
        "rounds": ROUNDS,
        "serialized": problem.serialize,
        "emulated_link_bytes_per_second": problem.get_bandwidth,
        "forward": pass(measured, 0),
        "backward": problem.dout.is_some().then(|| pass(measured, 1)),
    }))
}

fn table(object: &Value) -> String {
    let mut table = Table::default();
    table.line(["", "all PEs", "whole", "ratio", "stages", "tiles", "merges", "gets", "exposed"]);
    for name in ["forward", "backward"] {
        let pass = &object[name];
        let time = |key: &str| pass[key].as_f64().map_or_else(String::new, milliseconds);
        if pass.is_object() {
            table.line([
                name.to_owned(),
                time("seconds"),
                time("whole_seconds"),
                format!("{:.3}", pass["ratio"].as_f64().unwrap_or(f64::NAN)),
                pass["stages"].to_string(),
                time("tile_seconds"),
                time("merge_seconds"),
                time("get_seconds"),
                time("exposed_seconds"),
            ]);
        }
    }
    let text = |key: &str| object[key].as_str().map_or_else(|| object[key].to_string(), str::to_owned);
    let mut head = format!(
        "{} ({} of them), {} tokens, heads {}/{}, dim {}, {}, mask {}, {} PEs, medians of {} rounds\n",
        text("gpu"),
        text("gpus"),
        text("seqlen"),
        text("q_heads"),
        text("kv_heads"),
        text("head_dim"),
        text("dtype"),
        text("mask"),
        text("pes"),
        text("rounds"),
    );
    if let Some(rate) = object["emulated_link_bytes_per_second"].as_f64() {
        head.push_str(&format!("emulated link: gets at {:.1} GB/s\n", rate * 1e-9));
    }
    if object["serialized"] == json!(true) {
        head.push_str("one PE at a time\n");
    }
    format!("{head}\n{}", table.text())
}

//! `longreach attend`.

use crate::args::AttendArgs;
use crate::check::{self, Row};
use crate::error::{Error, complain, status};
use crate::failed::Guard;
#[cfg(unix)]
use crate::launch;
use crate::output::{self, Output};
use crate::place::{self, Place};
use crate::progress::Progress;
use crate::report::Report;
use crate::request::{Problem, Request, threads_of};
use crate::results::{Results, Runs};
use crate::run::{self, Planned, Way};
use crate::{stdout, trace};
use longreach::reference::accuracy::Accuracy;
use longreach::{Device, World, reference};
use longreach_kernels::DType;

/// Computes what was asked for; returns the exit status.
pub fn attend(args: AttendArgs) -> Result<u8, Error> {
    let (place, pes) = Place::of(args.transport, args.pes)?;
    let request = Request::new(args, pes)?;
    let problem = &request.problem;
    // Refused before a first line of progress: an error that could be foreseen stands alone.
    let way = Way { fault: request.fault.clone(), ..Way::asked(problem, request.repeat) };
    let planned = Planned::new(problem, &way)?;
    if let Some(fault) = &request.fault {
        fault.check(planned.plan(), problem.transport, problem.dout.is_some())?;
    }
    let world = match &place {
        #[cfg(unix)]
        Place::Children => return launch::own::launch(pes, request.json),
        Place::Threads => World::threads(pes).map_err(|error| Error::Run(error.to_string()))?,
        Place::Pe(rendezvous) => place::join(rendezvous, request.json)?,
    };
    let world = world.with_deadline(problem.deadline);
    let tells = world.own().is_none_or(|own| own == 0);
    let progress = if tells { Progress::new() } else { Progress::hidden() };
    match compute(&request, &planned, &world, &progress)? {
        Computed::Here(runs) => finish(&request, &runs, &progress),
        Computed::AtPe0 => Ok(status::DONE),
        Computed::Failed(status) => Ok(status),
    }
}

/// How the PEs' work has ended.
enum Computed {
    /// The results are in this process.
    Here(Box<Runs>),
    /// They are in the process of PE 0.
    AtPe0,
    /// A PE has failed, which has been told; the status to end with.
    Failed(u8),
}

fn compute(
    request: &Request,
    planned: &Planned,
    world: &World,
    progress: &Progress,
) -> Result<Computed, Error> {
    let problem = &request.problem;
    let passes = if problem.dout.is_some() { "forward and backward" } else { "forward" };
    let what = match problem.device {
        Device::Cpu => format!("{passes} on {} PEs x {} threads", problem.pes, problem.threads),
        Device::Cuda(_) => format!("{passes} on {} PEs on GPUs", problem.pes),
    };
    let guard = Guard::new(world, request.fault.clone(), request.json);
    let runs = progress.step(&what, || planned.run(world, progress));
    let failed = if runs.is_err() { guard.tell()? } else { None };
    drop(guard);
    match (runs, failed) {
        (Ok(Some(runs)), _) => Ok(Computed::Here(Box::new(runs))),
        (Ok(None), _) => Ok(Computed::AtPe0),
        (Err(_), Some(status)) => Ok(Computed::Failed(status)),
        (Err(error), None) => Err(Error::Run(error.to_string())),
    }
}

/// Checks, writes and prints the results, as was asked for; returns the exit status.
fn finish(request: &Request, runs: &Runs, progress: &Progress) -> Result<u8, Error> {
    let problem = &request.problem;
    if let Some((number, tensor)) = runs.difference {
        complain(&format!("run {number} of {} differs from run 1 in {tensor}", request.repeat));
        return Ok(status::CHECK_FAILED);
    }

    // Before anything is compared or written, so that nothing is where not all can be.
    let out = request.out.as_ref().map(|(path, dtype)| (path, outputs(*dtype, problem, &runs.results)));
    if let Some(why) = out.as_ref().and_then(|(_, outputs)| overflow(outputs)) {
        complain(&why);
        return Ok(status::CHECK_FAILED);
    }

    let rows = if request.check { Some(compare(problem, &runs.results, progress)?) } else { None };
    if let Some((path, outputs)) = out {
        progress.step("writing the results", || output::write(path, outputs))?;
    }
    if let Some(path) = &request.trace {
        trace::write(path, &runs.spans)?;
    }

    let median = runs.median();
    let report = Report {
        problem,
        stages: runs.stages,
        forward: median.forward,
        backward: median.backward,
        per_pe: &median.per_pe,
        need: &runs.need,
        check: rows.as_deref(),
    };
    stdout::print(&if request.json { format!("{}\n", report.json()) } else { report.text() })?;

    match rows.as_deref().and_then(check::verdict) {
        None => Ok(status::DONE),
        Some(why) => {
            complain(&why);
            Ok(status::CHECK_FAILED)
        }
    }
}

/// Errors against float64, beside those of the same engine on one PE.
fn compare(problem: &Problem, results: &Results, progress: &Progress) -> Result<Vec<Row>, Error> {
    let one = match problem.pes {
        1 => None,
        _ => {
            let way = Way::one_device(problem, threads_of(1));
            let work = || run::run(problem, &way, progress);
            Some(progress.step("the same on one PE", work)?)
        }
    };
    let one = one.as_ref().map_or(results, |one| &one.results);
    let (q, k, v) = (problem.q.view(), problem.k.view(), problem.v.view());
    let (bands, scale) = (&problem.bands, problem.scale);
    let rows = || -> Result<Vec<Row>, reference::Mismatch> {
        let forward = progress.step("forward in float64", || reference::forward(&q, &k, &v, bands, scale))?;
        let backward = match &problem.dout {
            None => None,
            Some(dout) => Some(progress.step("backward in float64", || {
                reference::backward_of(&forward, &q, &k, &v, &dout.view(), bands, scale)
            })?),
        };
        check::compare(
            results,
            one,
            &forward,
            backward.as_ref(),
            &Accuracy::of(problem.device, problem.sizes.dtype),
        )
    };
    rows().map_err(|mismatch| Error::Run(format!("the check cannot be made: {mismatch}")))
}

/// What --out writes.
fn outputs<'r>(dtype: DType, problem: &Problem, results: &'r Results) -> Vec<Output<'r>> {
    let sizes = &problem.sizes;
    let shape = |name: &str| match name {
        "lse" => vec![sizes.batch, sizes.q_heads, sizes.q_len],
        "dq" => problem.q.shape().to_vec(),
        "dk" => problem.k.shape().to_vec(),
        "dv" => problem.v.shape().to_vec(),
        _ => sizes.out_shape().to_vec(),
    };
    let asked = |name: &str| problem.dout.is_some() || matches!(name, "out" | "lse");
    let outputs = results.tensors().into_iter().filter(|(name, _)| asked(name)).map(|(name, values)| {
        Output { name, dtype: if name == "lse" { DType::F32 } else { dtype }, shape: shape(name), values }
    });
    outputs.collect()
}

/// What is to be said where finite results would be written as infinite.
fn overflow(outputs: &[Output]) -> Option<String> {
    let beyond: Vec<String> = outputs
        .iter()
        .map(|output| (output, output.overflows()))
        .filter(|(_, values)| *values > 0)
        .map(|(Output { name, dtype, .. }, values)| {
            let noun = if values == 1 { "value" } else { "values" };
            format!("{name} has {values} {noun} beyond {dtype}'s range")
        })
        .collect();
    (!beyond.is_empty()).then(|| format!("{}: write --out-dtype f32", beyond.join(", ")))
}

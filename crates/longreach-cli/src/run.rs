//! Runs a problem on the engine: shards it, makes the calls, and puts the parts together again.

use crate::args::Transport;
use crate::error::Error;
use crate::inject::Fault;
use crate::measure::{Called, Timed, measured, spans};
use crate::part::Part;
use crate::progress::Progress;
use crate::request::Problem;
use crate::results::{Results, Runs, difference};
use longreach::{
    Attention, ContextParallel, Device, Dims, HeapSize, Layout, Need, Options, Pe, Plan, Shards, Stages,
    Team, Tensor, Turns, World,
};
use longreach_plan as plan;
use std::sync::Arc;

/// How a problem is run.
#[derive(Clone, Debug)]
pub struct Way {
    /// Processing elements.
    pub pes: usize,
    /// Options of the engine.
    pub options: Options,
    /// Equal runs.
    pub repeat: usize,
    /// A fault on purpose.
    pub fault: Option<Fault>,
    /// Whether NVSHMEM moves the bytes.
    pub nvshmem: bool,
}

impl Way {
    /// As the problem asks.
    pub fn asked(problem: &Problem, repeat: usize) -> Self {
        let options = Options {
            layout: problem.layout.clone(),
            stages: problem.stages,
            memory: problem.memory,
            threads: problem.threads,
            device: problem.device,
            deterministic: problem.deterministic,
            get_bandwidth: problem.get_bandwidth,
            turns: problem.serialize.then(Turns::default),
            return_slots: return_slots(problem),
            ..Options::default()
        };
        let nvshmem = problem.transport == Transport::Nvshmem;
        Self { pes: problem.pes, options, repeat, fault: None, nvshmem }
    }

    /// On one PE with the whole sequence in order: what others are compared with.
    pub fn one_device(problem: &Problem, threads: usize) -> Self {
        let options = Options {
            layout: Layout::Contiguous,
            stages: Stages::Exactly(1),
            threads,
            device: problem.device,
            deterministic: problem.deterministic,
            ..Options::default()
        };
        Self { pes: 1, options, repeat: 1, fault: None, nvshmem: false }
    }
}

/// Gradient return slots. PEs that take turns cannot wait for each other's contributions: there is one for each.
fn return_slots(problem: &Problem) -> usize {
    let stages = match problem.stages {
        Stages::Exactly(stages) => stages,
        Stages::Auto => problem.pes,
    };
    match problem.serialize {
        true => problem.pes.saturating_mul(stages.max(1)),
        false => Options::default().return_slots,
    }
}

/// Runs `problem` on threads; see [`Planned::new`] and [`Planned::run`].
pub fn run(problem: &Problem, way: &Way, progress: &Progress) -> Result<Runs, Error> {
    let planned = Planned::new(problem, way)?;
    let world = World::threads(way.pes).map_err(failed)?.with_deadline(problem.deadline);
    let runs = planned.run(&world, progress).map_err(failed)?;
    runs.ok_or_else(|| Error::Run("the run has no results".to_owned()))
}

/// What a PE holds, for its statistics.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    /// Query tokens, over all batch rows.
    pub tokens: u64,
    /// Bytes of K and V that a ring would bring to it.
    pub ring: u64,
}

/// A problem that has been planned.
pub struct Planned<'p> {
    problem: &'p Problem,
    attention: Attention,
    options: Options,
    repeat: usize,
    fault: Option<Fault>,
    nvshmem: bool,
    plan: Arc<Plan>,
    need: Need,
    q: Shards,
    kv: Shards,
}

impl<'p> Planned<'p> {
    /// Fails when there is no such plan, before anything starts.
    pub fn new(problem: &'p Problem, way: &Way) -> Result<Self, Error> {
        let sizes = &problem.sizes;
        let attention =
            Attention::cross(problem.mask.clone(), sizes.q_len, sizes.kv_len).scale(problem.scale as f32);
        let refused = |error| refused(error, &way.options);
        let dims = Dims::of(&problem.q.view(), &problem.k.view(), &problem.v.view());
        let mut options = way.options.clone();
        let (plan, need) =
            dims.and_then(|dims| longreach::plan(way.pes, &attention, &dims, &options)).map_err(refused)?;
        options.heap = HeapSize::of(&need);
        let (q, kv) = longreach::shards(way.pes, sizes.batch, &attention, &options).map_err(refused)?;
        Ok(Self {
            problem,
            attention,
            options,
            repeat: way.repeat,
            fault: way.fault.clone(),
            nvshmem: way.nvshmem,
            plan,
            need,
            q,
            kv,
        })
    }

    /// The engine's options, with a heap for the problem.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What is computed.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Who holds which queries and which keys.
    pub fn shards(&self) -> (&Shards, &Shards) {
        (&self.q, &self.kv)
    }

    /// Who fetches and computes what.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs the problem in `world`, of as many PEs as were planned. PE 0 gets the results of all; the others, where
    /// they are processes, get nothing.
    pub fn run(&self, world: &World, progress: &Progress) -> Result<Option<Runs>, longreach::Error> {
        let watched = world.clone();
        progress.show(move || {
            let done = (0..watched.pes()).map(|pe| watched.progress(pe));
            let (least, most) = done.fold((u64::MAX, 0), |(a, b), n| (a.min(n), b.max(n)));
            format!("{least} to {most} tiles and transfers a PE")
        });
        let collected = world.run(|pe| {
            let team = pe.team()?;
            let part = self.on(pe, &team)?;
            Ok::<_, longreach::Error>(team.collect(0, &part.to_bytes()?)?)
        })?;
        let Some(parts) = collected.into_iter().flatten().next() else {
            return Ok(None);
        };
        let mut parts = parts.iter().map(|bytes| Part::from_bytes(bytes)).collect::<Result<Vec<_>, _>>()?;
        let results = self.assemble(&mut parts)?;
        let calls: Vec<&[Called]> = parts.iter().map(|part| &part.calls[..]).collect();
        Ok(Some(Runs {
            results,
            difference: parts.iter().filter_map(|part| part.difference).min_by_key(|(run, _)| *run),
            measured: (0..self.repeat).map(|number| measured(&calls, number, &self.holdings())).collect(),
            stages: calls.iter().flat_map(|calls| calls.iter().map(Called::stages)).max().unwrap_or(0),
            need: self.need,
            spans: spans(&calls),
        }))
    }

    fn holdings(&self) -> Vec<Holding> {
        let problem = self.problem;
        let batch = problem.sizes.batch as u64;
        let kv_bytes = (problem.k.bytes() + problem.v.bytes()) as u64;
        let row = kv_bytes.checked_div(self.kv.total() as u64).unwrap_or(0);
        (0..self.q.pes())
            .map(|pe| Holding {
                tokens: batch * self.q.len(pe) as u64,
                ring: row * (self.kv.total() - self.kv.len(pe)) as u64,
            })
            .collect()
    }

    /// All calls of one PE.
    fn on(&self, pe: &Pe, team: &Team) -> Result<Part, longreach::Error> {
        let fault = self.fault.as_ref().filter(|fault| fault.pe == pe.number());
        let options = Options { before_stage: fault.map(Fault::hook), ..self.options.clone() };
        let problem = self.problem;
        if self.nvshmem {
            start_nvshmem(team, &options, pe)?;
        }
        let cp = ContextParallel::new(team, &options)?;
        let me = team.rank();
        let q = longreach::shard(&problem.q.view(), &self.q, me)?;
        let k = longreach::shard(&problem.k.view(), &self.kv, me)?;
        let v = longreach::shard(&problem.v.view(), &self.kv, me)?;
        let dout =
            problem.dout.as_ref().map(|dout| longreach::shard(&dout.view(), &self.q, me)).transpose()?;
        let mut part = Part { tensors: Vec::new(), difference: None, calls: Vec::new() };
        for number in 1..=self.repeat {
            // PEs begin a pass together: its times are its own, not those of what came before.
            team.barrier()?;
            let forward = cp.forward(&q.view(), &k.view(), &v.view(), &self.attention)?;
            // It waits for the end of the forward, so that the backward's time is its own too.
            let mut called =
                Called { forward: Timed::of(me, "forward", &forward.saved.statistics()?), backward: None };
            team.barrier()?;
            let mut gradients = None;
            if let Some(dout) = &dout {
                let grads = forward.saved.backward(&dout.view())?;
                called.backward = Some(Timed::of(me, "backward", &grads.statistics()?));
                gradients = Some(grads);
            }
            let mut outputs = vec![("out", forward.out.wait()?), ("lse", forward.lse.wait()?)];
            if let Some(grads) = &gradients {
                outputs.push(("dq", grads.dq.wait()?));
                outputs.push(("dk", grads.dk.wait()?));
                outputs.push(("dv", grads.dv.wait()?));
            }
            if number == 1 {
                part.tensors = outputs.into_iter().map(|(name, tensor)| (name, tensor.clone())).collect();
            } else {
                called.forget_spans();
                let first = part.tensors.iter().map(|(name, tensor)| (*name, tensor));
                // A library's kernels for a GPU may add up in any order, where they are not asked for one.
                if options.deterministic || options.device == Device::Cpu {
                    part.difference = part.difference.or_else(|| Some((number, difference(first, outputs)?)));
                }
            }
            part.calls.push(called);
        }
        cp.free()?;
        if self.nvshmem {
            stop_nvshmem(team)?;
        }
        Ok(part)
    }

    /// Takes the tensors out of the parts and puts them together in the order of the whole sequence.
    fn assemble(&self, parts: &mut [Part]) -> Result<Results, longreach::Error> {
        let mut results = Results::default();
        let mut taken: Vec<_> =
            parts.iter_mut().map(|part| std::mem::take(&mut part.tensors).into_iter()).collect();
        loop {
            let column: Vec<_> = taken.iter_mut().filter_map(Iterator::next).collect();
            let Some(&(name, _)) = column.first() else {
                return Ok(results);
            };
            let tensors: Vec<Tensor> = column.into_iter().map(|(_, tensor)| tensor).collect();
            let (into, whole) = match name {
                "out" => (&mut results.out, longreach::unshard(&tensors, &self.q)?),
                "lse" => (&mut results.lse, self.unshard_lse(tensors)?),
                "dq" => (&mut results.dq, longreach::unshard(&tensors, &self.q)?),
                "dk" => (&mut results.dk, longreach::unshard(&tensors, &self.kv)?),
                _ => (&mut results.dv, longreach::unshard(&tensors, &self.kv)?),
            };
            *into = floats(whole.elements().clone());
        }
    }

    /// Rows are lse's third dimension, so each batch row and head counts as a batch row.
    fn unshard_lse(&self, parts: Vec<Tensor>) -> Result<Tensor, longreach::Error> {
        let lines: Vec<Tensor> = parts
            .into_iter()
            .map(|part| {
                let [batch, heads, rows, _] = part.shape();
                Tensor::new(part.elements().clone(), [batch * heads, rows, 1, 1])
            })
            .collect::<Result<_, _>>()?;
        longreach::unshard(&lines, &self.q)
    }
}

/// Makes NVSHMEM the one that moves bytes between GPUs.
#[cfg(target_os = "linux")]
fn start_nvshmem(team: &Team, options: &Options, pe: &Pe) -> Result<(), longreach::Error> {
    let gpu = options.device.gpu(pe.number())?;
    let mode = team.start_nvshmem(&gpu)?;
    if pe.number() == 0 {
        eprintln!("NVSHMEM: {mode}");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn stop_nvshmem(team: &Team) -> Result<(), longreach::Error> {
    Ok(team.stop_nvshmem()?)
}

// The transport has been refused before, where there is no such library.
#[cfg(not(target_os = "linux"))]
fn start_nvshmem(_team: &Team, _options: &Options, _pe: &Pe) -> Result<(), longreach::Error> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn stop_nvshmem(_team: &Team) -> Result<(), longreach::Error> {
    Ok(())
}

/// The engine's results are float32.
fn floats(elements: longreach::Elements) -> Vec<f32> {
    match elements {
        longreach::Elements::F32(values) => values,
        _ => Vec::new(),
    }
}

/// Why a plan was refused, in the words of the command line.
fn refused(error: longreach::Error, options: &Options) -> Error {
    match (&error, options.memory) {
        (longreach::Error::Plan(plan::Error::Memory { smallest, stages, .. }), Some(bound)) => {
            let why = format!(
                "at least {smallest} bytes a PE are needed, at {stages} fetched stages: raise the bound, allow more \
                 stages or use more PEs"
            );
            Error::bad("--memory", bound.to_string(), why)
        }
        _ => Error::Usage(error.to_string()),
    }
}

/// What ended a run that had begun.
fn failed(error: impl std::fmt::Display) -> Error {
    Error::Run(error.to_string())
}

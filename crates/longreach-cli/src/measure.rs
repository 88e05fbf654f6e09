//! From the engine's statistics of single PEs to those of a run.

use crate::results::Measured;
use crate::run::Holding;
use crate::stats::{Pass, PerPe, Span};
use longreach::Statistics;
use serde::{Deserialize, Serialize};

/// Statistics of one run on one PE.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Called {
    /// The forward pass.
    pub forward: Timed,
    /// The backward pass.
    pub backward: Option<Timed>,
}

/// The engine's statistics of one pass on one PE, in a form that can travel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Timed {
    /// When the call was made, in seconds from the world's origin.
    pub start: f64,
    /// When its results were there.
    pub end: f64,
    /// Seconds of the compute stream at work.
    pub compute: f64,
    /// Seconds of the communication streams at work.
    pub comm: f64,
    /// Seconds of the compute stream idle.
    pub exposed: f64,
    /// Bytes of other PEs' rows.
    pub bytes_fetched: u64,
    /// Other PEs' rows.
    pub rows_fetched: u64,
    /// Bytes of contributions to other PEs' gradients.
    pub bytes_returned: u64,
    /// Floating-point operations.
    pub flops: u64,
    /// Fetched stages.
    pub stages: usize,
    /// What each stream did.
    pub spans: Vec<Span>,
}

impl Timed {
    /// Of a pass of PE `pe`.
    pub fn of(pe: usize, pass: &'static str, stats: &Statistics) -> Self {
        Self {
            start: stats.start,
            end: stats.end,
            compute: stats.compute,
            comm: stats.comm,
            exposed: stats.exposed,
            bytes_fetched: stats.bytes_fetched,
            rows_fetched: stats.rows_fetched,
            bytes_returned: stats.bytes_returned,
            flops: stats.flops,
            stages: stats.stages,
            spans: stats.spans.iter().map(|span| traced(pe, pass, span)).collect(),
        }
    }
}

impl Called {
    /// Fetched stages.
    pub fn stages(&self) -> usize {
        self.forward.stages
    }

    /// Gives up what only a trace needs.
    pub fn forget_spans(&mut self) {
        self.passes().for_each(|pass| pass.spans = Vec::new());
    }

    fn passes(&mut self) -> impl Iterator<Item = &mut Timed> {
        std::iter::once(&mut self.forward).chain(&mut self.backward)
    }
}

/// Run `number` of all PEs, whose calls and holdings stand in PE order.
pub fn measured(calls: &[&[Called]], number: usize, holdings: &[Holding]) -> Measured {
    let runs = || calls.iter().filter_map(|calls| calls.get(number));
    let per_pe: Vec<PerPe> = runs()
        .zip(holdings)
        .map(|(called, holding)| PerPe {
            tokens: holding.tokens,
            rows_fetched: called.forward.rows_fetched,
            forward: pass(&called.forward, holding),
            backward: called.backward.as_ref().map(|stats| pass(stats, holding)),
        })
        .collect();
    let forward: Vec<_> = runs().map(|called| &called.forward).collect();
    let backward: Vec<_> = runs().filter_map(|called| called.backward.as_ref()).collect();
    let passes: Vec<Pass> = per_pe.iter().map(|pe| pe.forward).collect();
    let gradient_passes: Vec<Pass> = per_pe.iter().filter_map(|pe| pe.backward).collect();
    Measured {
        forward: Pass::total(makespan(&forward), &passes),
        backward: (!backward.is_empty()).then(|| Pass::total(makespan(&backward), &gradient_passes)),
        per_pe,
    }
}

/// From the first PE's start to the last PE's end.
fn makespan(stats: &[&Timed]) -> f64 {
    let start = stats.iter().map(|stats| stats.start).reduce(f64::min);
    let end = stats.iter().map(|stats| stats.end).reduce(f64::max);
    start.zip(end).map_or(0.0, |(start, end)| end - start)
}

fn pass(stats: &Timed, holding: &Holding) -> Pass {
    Pass {
        seconds: stats.end - stats.start,
        compute_seconds: stats.compute,
        comm_seconds: stats.comm,
        exposed_seconds: stats.exposed,
        bytes_fetched: stats.bytes_fetched,
        bytes_ring: holding.ring,
        bytes_returned: stats.bytes_returned,
        flops: stats.flops as f64,
    }
}

/// What the streams of all PEs did in the first run.
pub fn spans(calls: &[&[Called]]) -> Vec<Span> {
    let first = calls.iter().filter_map(|calls| calls.first());
    let passes = first.flat_map(|called| std::iter::once(&called.forward).chain(&called.backward));
    let mut spans: Vec<Span> = passes.flat_map(|pass| pass.spans.iter().cloned()).collect();
    spans.sort_by(|a, b| (a.pe, a.start).partial_cmp(&(b.pe, b.start)).unwrap_or(std::cmp::Ordering::Equal));
    spans
}

fn traced(pe: usize, pass: &'static str, span: &longreach::Span) -> Span {
    let label = &span.label;
    let mut args = vec![("stage".into(), label.stage as u64)];
    let more = [("bytes", label.bytes), ("flops", label.flops)];
    args.extend(more.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.into(), count)));
    args.extend(label.peer.map(|peer| ("peer".into(), peer as u64)));
    // Streams are called role@PE, and the process is the PE.
    let stream = span.stream.split('@').next().unwrap_or(&span.stream);
    Span {
        pe,
        stream: stream.to_owned(),
        name: label.kind.name().to_owned(),
        pass: pass.into(),
        start: span.start,
        end: span.end,
        args,
    }
}

//! From the engine's statistics of single PEs to those of a run.

use crate::results::Measured;
use crate::run::Holding;
use crate::stats::{Pass, PerPe, Span};
use longreach::Statistics;

/// Statistics of one run on one PE.
#[derive(Clone, Debug)]
pub struct Called {
    /// The forward pass.
    pub forward: Statistics,
    /// The backward pass.
    pub backward: Option<Statistics>,
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

    fn passes(&mut self) -> impl Iterator<Item = &mut Statistics> {
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
fn makespan(stats: &[&Statistics]) -> f64 {
    let start = stats.iter().map(|stats| stats.start).reduce(f64::min);
    let end = stats.iter().map(|stats| stats.end).reduce(f64::max);
    start.zip(end).map_or(0.0, |(start, end)| end - start)
}

fn pass(stats: &Statistics, holding: &Holding) -> Pass {
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
    let first = calls.iter().map(|calls| calls.first());
    let mut spans: Vec<Span> = first
        .enumerate()
        .filter_map(|(pe, called)| Some((pe, called?)))
        .flat_map(|(pe, called)| {
            let forward = called.forward.spans.iter().map(|span| (span, "forward"));
            let backward = called.backward.iter().flat_map(|stats| &stats.spans);
            forward
                .chain(backward.map(|span| (span, "backward")))
                .map(move |(span, pass)| traced(pe, pass, span))
        })
        .collect();
    spans.sort_by(|a, b| (a.pe, a.start).partial_cmp(&(b.pe, b.start)).unwrap_or(std::cmp::Ordering::Equal));
    spans
}

fn traced(pe: usize, pass: &'static str, span: &longreach::Span) -> Span {
    let label = &span.label;
    let mut args = vec![("stage", label.stage as u64)];
    let more = [("bytes", label.bytes), ("flops", label.flops)];
    args.extend(more.into_iter().filter(|(_, count)| *count > 0));
    args.extend(label.peer.map(|peer| ("peer", peer as u64)));
    // Streams are called role@PE, and the process is the PE.
    let stream = span.stream.split('@').next().unwrap_or(&span.stream);
    Span {
        pe,
        stream: stream.to_owned(),
        name: label.kind.name().to_owned(),
        pass,
        start: span.start,
        end: span.end,
        args,
    }
}

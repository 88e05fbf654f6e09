//! Timelines: what each stream did when, for statistics and traces.

use crate::cuda;
use crate::error::Error;
use crate::sync::{Arc, Mutex, lock};
use std::time::Instant;

/// What a span of a stream's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rows written into this PE's symmetric memory and announced.
    Publish,
    /// Rows read from a peer's symmetric memory.
    Get,
    /// A contribution written into a peer's symmetric memory.
    Put,
    /// A contribution added where it belongs.
    Add,
    /// Attention on a batch of tiles.
    Tile,
    /// Partial results brought to their final form.
    Merge,
    /// Waiting for another stream or a peer.
    Wait,
    /// Waiting for the device, where PEs take turns at it.
    Turn,
}

impl Kind {
    /// The name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Publish => "publish",
            Kind::Get => "get",
            Kind::Put => "put",
            Kind::Add => "add",
            Kind::Tile => "tile",
            Kind::Merge => "merge",
            Kind::Wait => "wait",
            Kind::Turn => "turn",
        }
    }
}

/// What a piece of work is, as its timeline shows it.
#[derive(Clone, Debug)]
pub struct Label {
    /// What the time is spent on.
    pub kind: Kind,
    /// The call that the work belongs to (its epoch).
    pub call: u64,
    /// The stage of the call's plan.
    pub stage: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// Floating-point operations done.
    pub flops: u64,
    /// The PE at the other end, of transfers and waits.
    pub peer: Option<usize>,
    /// Whether the work is the host's alone, also on a stream of a GPU, which gets nothing to do.
    pub of_host: bool,
}

impl Label {
    /// A label of `kind` for `stage` of `call`, moving and computing nothing.
    pub const fn new(kind: Kind, call: u64, stage: usize) -> Self {
        Self { kind, call, stage, bytes: 0, flops: 0, peer: None, of_host: false }
    }

    /// The same with bytes moved.
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// The same with operations done.
    pub const fn flops(mut self, flops: u64) -> Self {
        self.flops = flops;
        self
    }

    /// The same of work that gives a GPU nothing to do: what it takes is the host's time.
    pub const fn of_host(mut self) -> Self {
        self.of_host = true;
        self
    }

    /// The same with the PE at the other end.
    pub const fn peer(mut self, peer: usize) -> Self {
        self.peer = Some(peer);
        self
    }
}

/// A labelled interval of a stream's time.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the stream.
    pub stream: std::sync::Arc<str>,
    /// What it was.
    pub label: Label,
    /// Seconds from the timeline's origin to the beginning.
    pub start: f64,
    /// Seconds from the timeline's origin to the end.
    pub end: f64,
}

/// A record of spans, shared by the streams of one PE.
#[derive(Clone, Debug)]
pub struct Timeline {
    origin: Instant,
    spans: Arc<Mutex<Vec<Recorded>>>,
}

/// A span as a stream left it.
#[derive(Debug)]
struct Recorded {
    stream: std::sync::Arc<str>,
    label: Label,
    time: Time,
}

#[derive(Debug)]
enum Time {
    Host(f64, f64),
    Gpu(std::sync::Arc<cuda::Gpu>, cuda::Event, cuda::Event),
}

impl Timeline {
    /// An empty timeline whose seconds count from `origin`.
    pub fn new(origin: Instant) -> Self {
        Self { origin, spans: Arc::new(Mutex::new(Vec::new())) }
    }

    /// Seconds since the origin.
    pub fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// Adds a span.
    pub fn record(&self, stream: &std::sync::Arc<str>, label: Label, start: f64, end: f64) {
        self.push(stream, label, Time::Host(start, end));
    }

    /// Adds a span between two points of the GPU's time.
    pub(crate) fn record_on_gpu(
        &self,
        stream: &std::sync::Arc<str>,
        label: Label,
        gpu: &std::sync::Arc<cuda::Gpu>,
        start: cuda::Event,
        end: cuda::Event,
    ) {
        self.push(stream, label, Time::Gpu(gpu.clone(), start, end));
    }

    fn push(&self, stream: &std::sync::Arc<str>, label: Label, time: Time) {
        lock(&self.spans).push(Recorded { stream: stream.clone(), label, time });
    }

    /// Forgets the spans of calls with smaller numbers than `call`.
    pub fn forget_before(&self, call: u64) {
        lock(&self.spans).retain(|span| span.label.call >= call);
    }

    /// Takes the spans of one call out of the timeline. Those of a GPU are waited for.
    pub fn take(&self, call: u64) -> Result<Vec<Span>, Error> {
        let taken: Vec<Recorded> = {
            let mut spans = lock(&self.spans);
            let (taken, kept) = spans.drain(..).partition(|span| span.label.call == call);
            *spans = kept;
            taken
        };
        // The GPU's clock is read as a distance in 32 bits: from a point of this call it is exact.
        let near = taken.iter().find_map(|span| match &span.time {
            Time::Host(..) => None,
            Time::Gpu(gpu, start, _) => Some((gpu.clone(), start.clone())),
        });
        let near = near.map(|(gpu, start)| Ok::<_, Error>((gpu.seconds(self.origin, &start)?, start)));
        let near = near.transpose()?;
        let at = |event: &cuda::Event| match &near {
            Some((seconds, start)) => Ok(seconds + start.seconds_to(event)?),
            None => Ok(0.0),
        };
        let spans = taken.into_iter().map(|Recorded { stream, label, time }| {
            let (start, end) = match &time {
                Time::Host(start, end) => (*start, *end),
                Time::Gpu(_, start, end) => (at(start)?, at(end)?),
            };
            Ok(Span { stream, label, start, end })
        });
        spans.collect()
    }
}

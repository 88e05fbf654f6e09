//! What a call did and when.

use super::call::{Call, Direction};
use super::exchange::{ADD, COMM, COMPUTE, RETURN};
use super::{Engine, KEPT};
use crate::error::Error;
use longreach_device::sync::lock;
use longreach_device::{Kind, Span};
use longreach_kernels::{flops_backward, flops_forward};

/// What one PE did in one call. Times are seconds.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// When this PE made the call, from the world's origin.
    pub start: f64,
    /// When its results were there.
    pub end: f64,
    /// Compute stream at work.
    pub compute: f64,
    /// Communication streams at work.
    pub comm: f64,
    /// Compute stream idle for an arrival or a late peer, after the call was made here.
    pub exposed: f64,
    /// Bytes of other PEs' K and V rows that were fetched.
    pub bytes_fetched: u64,
    /// Rows of other PEs that were fetched, over all batch entries.
    pub rows_fetched: u64,
    /// Bytes of contributions to other PEs' dK and dV.
    pub bytes_returned: u64,
    /// Floating-point operations of the visible pairs.
    pub flops: u64,
    /// Fetched stages.
    pub stages: usize,
    /// What each stream did.
    pub spans: Vec<Span>,
}

impl Engine {
    /// Blocks until all queued work is done. Recorded as a wait: who waits for this PE's own thread meanwhile has to
    /// find out what its streams wait for.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        let streams = [(COMPUTE, &self.compute), (COMM, &self.comm), (RETURN, &self.put), (ADD, &self.add)];
        for (role, stream) in streams {
            let wait = || stream.record().synchronize_unless(|| self.failed());
            self.team.host_waits(role, wait).map_err(longreach_device::Error::Fault)?;
        }
        Ok(())
    }

    pub(super) fn statistics(&self, call: &Call) -> Result<Statistics, Error> {
        let calls = lock(&self.calls).epoch;
        if calls >= call.epoch + KEPT {
            return Err(Error::Input(format!(
                "statistics of call {} were asked for after call {calls}: they are kept for {KEPT} calls",
                call.epoch
            )));
        }
        self.synchronize()?;
        Ok(statistics(call, self.timeline.take(call.epoch)?))
    }
}

fn statistics(call: &Call, spans: Vec<Span>) -> Statistics {
    let on = |span: &Span, role: &str| span.stream.split('@').next() == Some(role);
    let last = |role| {
        let ends = spans.iter().filter(|span| on(span, role)).map(|span| span.end);
        ends.fold(call.start, f64::max)
    };
    let computed = last(COMPUTE);
    let end = match call.direction {
        Direction::Forward => computed,
        Direction::Backward => computed.max(last(ADD)),
    };
    let time = |wanted: &dyn Fn(&Span) -> bool| {
        spans.iter().filter(|span| wanted(span)).map(|span| span.end - span.start).sum::<f64>()
    };
    let waited = time(&|span| on(span, COMPUTE) && span.label.kind == Kind::Wait);
    let bytes = |kind| spans.iter().filter(|span| span.label.kind == kind).map(|span| span.label.bytes).sum();
    let dims = &call.dims;
    let pairs: u64 =
        call.pe_plan().stages.iter().flat_map(|stage| &stage.tiles).map(|tile| tile.visible_pairs()).sum();
    let (heads, dk, dv) = (dims.q_heads as u64, dims.head_dim as u64, dims.value_dim as u64);
    Statistics {
        start: call.start,
        end,
        compute: time(&|span| on(span, COMPUTE) && !matches!(span.label.kind, Kind::Wait | Kind::Turn)),
        comm: time(&|span| matches!(span.label.kind, Kind::Publish | Kind::Get | Kind::Put)),
        // After its last tile the PE may still wait for what others send it.
        exposed: waited + (end - computed),
        bytes_fetched: bytes(Kind::Get),
        rows_fetched: call
            .pe_plan()
            .stages
            .iter()
            .flat_map(|stage| &stage.gets)
            .map(|get| (get.rows.len() * get.batch.len()) as u64)
            .sum(),
        bytes_returned: bytes(Kind::Put),
        flops: match call.direction {
            Direction::Forward => flops_forward(pairs, heads, dk, dv),
            Direction::Backward => flops_backward(pairs, heads, dk, dv),
        },
        stages: call.fetched(),
        spans,
    }
}

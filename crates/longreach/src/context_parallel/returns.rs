//! Gradients of fetched K and V go home: contributions written into their owner's return slots, in the plan's order.
//!
//! Contribution n of an owner depends only on smaller ones, so this neither deadlocks nor needs more than the
//! return slots; `docs/protocol.md` says why.

use super::call::Call;
use super::exchange::{ADD, RETURN, owners_in_order};
use super::heap::{Heap, Purpose};
use crate::error::Error;
use crate::memory::filled;
use longreach_device::{Filling, Kind, Loan, Slot, Stream};
use longreach_plan::Contribution;

/// Float32 gradients of K and V rows.
pub(super) struct Grads {
    pub(super) dk: Vec<f32>,
    pub(super) dv: Vec<f32>,
}

impl Grads {
    pub(super) fn zeros(call: &Call, rows: usize) -> Result<Self, Error> {
        let rows = rows * call.dims.batch;
        let zeros = |elements| filled("gradients of keys and values", 0.0, elements);
        Ok(Self { dk: zeros(rows * call.dims.k_row())?, dv: zeros(rows * call.dims.v_row())? })
    }
}

impl Grads {
    /// Elements of dk and dv that a stage uses.
    pub(super) fn lens(&self, call: &Call, stage: usize) -> (usize, usize) {
        let rows = match stage {
            0 => call.pe_plan().kv_rows,
            _ => call.stage(stage).rows,
        } * call.dims.batch;
        (rows * call.dims.k_row(), rows * call.dims.v_row())
    }
}

/// What the signals say of contribution `n` of a call: larger for later ones, in this call and the next.
fn tag(epoch: u64, n: usize) -> u64 {
    (epoch << 32) | (n as u64 + 1)
}

/// A run of float32 elements that lie side by side in a contribution and in the rows it belongs to.
struct Piece {
    value: bool,
    /// First element among the rows.
    row: usize,
    /// First byte of the contribution.
    at: usize,
    len: usize,
}

/// The pieces of a contribution: all keys' gradients, then all values'. With `home`, rows are the owner's; else
/// those of the writer's stage.
fn pieces(call: &Call, writer: usize, stage: usize, owner: usize, home: bool) -> Vec<Piece> {
    let plan = &call.plan.pes[writer].stages[stage];
    let owned = call.plan.pes[owner].kv_rows;
    let mut pieces = Vec::new();
    let mut at = 0;
    for (value, width) in [(false, call.dims.k_row()), (true, call.dims.v_row())] {
        for get in plan.gets.iter().filter(|get| get.owner == owner) {
            for b in get.batch.clone() {
                let row = if home { b * owned + get.rows.start } else { b * plan.rows + get.at };
                let len = get.rows.len() * width;
                pieces.push(Piece { value, row: row * width, at, len });
                at += len * 4;
            }
        }
    }
    pieces
}

/// Queues this PE's contributions of `stage`, which lie in `grads`, on the return stream.
pub(super) fn send(
    heap: &Heap,
    stream: &Stream,
    call: &Call,
    stage: usize,
    grads: &Loan<'_, Grads>,
) -> Result<(), Error> {
    for owner in owners_in_order(call, stage) {
        let me = call.me;
        let n = call
            .plan
            .contributions(owner)
            .iter()
            .position(|contribution| contribution.stage == stage && contribution.writer == me)
            .ok_or_else(|| {
                Error::Input(format!(
                    "the plan has no contribution of PE {me} to PE {owner} in stage {stage}"
                ))
            })?;
        let tag = tag(call.epoch, n);
        let operation = call.operation("gradient return", stage);
        let granted = heap.clone();
        stream.launch(call.label(Kind::Wait, stage).peer(owner), (), move |()| {
            let word = granted.word(Purpose::Granted, owner);
            granted
                .signals
                .wait(word, tag, RETURN, owner, ADD, operation)
                .map_err(|error| Error::from(error).into_fault())
        })?;
        let pieces = pieces(call, me, stage, owner, false);
        let bytes = pieces.iter().map(|piece| piece.len as u64 * 4).sum();
        let heap = heap.clone();
        stream.launch(call.label(Kind::Put, stage).bytes(bytes).peer(owner), (grads,), move |(grads,)| {
            let put = || -> Result<(), Error> {
                for piece in pieces {
                    let rows = if piece.value { &grads.dv } else { &grads.dk };
                    let bytes = bytemuck::cast_slice(&rows[piece.row..piece.row + piece.len]);
                    heap.write_contribution(owner, n % heap.return_slots, piece.at, bytes)?;
                }
                Ok(heap.signals.set(owner, heap.word(Purpose::Arrived, me), tag)?)
            };
            put().map_err(Error::into_fault)
        })?;
    }
    Ok(())
}

/// Queues the first grants: as many contributions may be written as there are slots.
pub(super) fn grant_first(heap: &Heap, stream: &Stream, call: &Call) -> Result<(), Error> {
    let contributions = call.plan.contributions(call.me);
    for (n, contribution) in contributions.iter().enumerate().take(heap.return_slots) {
        grant(heap, stream, call, n, contribution)?;
    }
    Ok(())
}

fn grant(
    heap: &Heap,
    stream: &Stream,
    call: &Call,
    n: usize,
    contribution: &Contribution,
) -> Result<(), Error> {
    let word = heap.word(Purpose::Granted, call.me);
    let label = call.label(Kind::Publish, contribution.stage).peer(contribution.writer);
    Ok(heap.signals.set_on(stream, label, contribution.writer, word, tag(call.epoch, n))?)
}

/// Queues the adding of all contributions to this PE's rows into `home`, in the plan's order.
pub(super) fn add_all(
    heap: &Heap,
    stream: &Stream,
    call: &Call,
    home: &mut Filling<Grads>,
) -> Result<(), Error> {
    let contributions = call.plan.contributions(call.me);
    let largest =
        contributions.iter().map(|contribution| contribution_elements(call, contribution)).max().unwrap_or(0);
    let mut scratch = Slot::new("arrived contribution", filled("an arrived contribution", 0f32, largest)?)
        .fill(call.label(Kind::Wait, 0), stream);
    for (n, contribution) in contributions.iter().enumerate() {
        let (writer, stage) = (contribution.writer, contribution.stage);
        let arrived = heap.clone();
        let operation = call.operation("gradient return", stage);
        stream.launch(call.label(Kind::Wait, stage).peer(writer), (), move |()| {
            let word = arrived.word(Purpose::Arrived, writer);
            let tag = tag(operation.epoch, n);
            arrived
                .signals
                .wait(word, tag, ADD, writer, RETURN, operation)
                .map_err(|error| Error::from(error).into_fault())
        })?;
        let pieces = pieces(call, writer, stage, call.me, true);
        let elements = contribution_elements(call, contribution);
        let (source, me) = (heap.clone(), call.me);
        stream.launch(
            call.label(Kind::Add, stage).bytes(elements as u64 * 4).peer(writer),
            (&mut *home, &mut scratch),
            move |(home, scratch)| {
                let arrived = &mut scratch[..elements];
                source
                    .read_contribution(me, n % source.return_slots, 0, bytemuck::cast_slice_mut(arrived))
                    .map_err(Error::into_fault)?;
                for piece in pieces {
                    let rows = if piece.value { &mut home.dv } else { &mut home.dk };
                    let from = &arrived[piece.at / 4..piece.at / 4 + piece.len];
                    for (sum, term) in rows[piece.row..piece.row + piece.len].iter_mut().zip(from) {
                        *sum += term;
                    }
                }
                Ok(())
            },
        )?;
        let next = n + heap.return_slots;
        if let Some(contribution) = contributions.get(next) {
            grant(heap, stream, call, next, contribution)?;
        }
    }
    Ok(())
}

fn contribution_elements(call: &Call, contribution: &Contribution) -> usize {
    contribution.rows * (call.dims.k_row() + call.dims.v_row())
}

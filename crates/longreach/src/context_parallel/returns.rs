//! Gradients of fetched K and V go home: contributions written into their owner's return slots, in the plan's order.
//!
//! Contribution n of an owner depends only on smaller ones, so this neither deadlocks nor needs more than the
//! return slots; `docs/protocol.md` says why.

use super::call::Call;
use super::device::{Kernels, Total};
use super::exchange::{ADD, RETURN, owners_in_order};
use super::heap::{Heap, Purpose};
use crate::array::{Array, Place, flat};
use crate::error::Error;
use longreach_device::{Bytes, BytesMut, Filling, Kind, Loan, Parts, Stream};
use longreach_plan::Contribution;
use longreach_shmem::Piece;
use std::sync::Arc;

/// Float32 gradients of K and V rows.
pub(super) struct Grads {
    pub(super) dk: Total,
    pub(super) dv: Total,
}

impl Grads {
    /// Room for so many elements of each.
    pub(super) fn new(place: &Place, dk: usize, dv: usize) -> Result<Self, Error> {
        const NAME: &str = "gradients of keys and values";
        Ok(Self { dk: Total::new(flat(place, NAME, dk)?), dv: Total::new(flat(place, NAME, dv)?) })
    }
}

/// Part 0 is dK, part 1 is dV.
impl Parts for Grads {
    fn part(&self, part: usize) -> Option<Bytes<'_>> {
        [&self.dk, &self.dv].get(part)?.array.part(0)
    }

    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>> {
        match part {
            0 => self.dk.array.part_mut(0),
            1 => self.dv.array.part_mut(0),
            _ => None,
        }
    }
}

/// What the signals say of contribution `n` of a call: larger for later ones, in this call and the next.
fn tag(epoch: u64, n: usize) -> u64 {
    (epoch << 32) | (n as u64 + 1)
}

/// Rows that lie side by side in a contribution and where they belong.
pub(super) struct Run {
    /// Whether they are of dV, else of dK.
    pub(super) value: bool,
    /// The first of the rows where they belong.
    pub(super) row: usize,
    /// First element of the contribution.
    pub(super) at: usize,
    /// How many.
    pub(super) rows: usize,
}

/// The runs of a contribution: all keys' gradients, then all values'. With `home`, rows are the owner's; else those of
/// the writer's stage.
fn runs(call: &Call, writer: usize, stage: usize, owner: usize, home: bool) -> Vec<Run> {
    let plan = &call.plan.pes[writer].stages[stage];
    let owned = call.plan.pes[owner].kv_rows;
    let mut runs = Vec::new();
    let mut at = 0;
    for (value, width) in [(false, call.dims.k_row()), (true, call.dims.v_row())] {
        for get in plan.gets.iter().filter(|get| get.owner == owner) {
            for b in get.batch.clone() {
                let row = if home { b * owned + get.rows.start } else { b * plan.rows + get.at };
                runs.push(Run { value, row, at, rows: get.rows.len() });
                at += get.rows.len() * width;
            }
        }
    }
    runs
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
        let (word, label) = (heap.word(Purpose::Granted, owner), call.label(Kind::Wait, stage).peer(owner));
        heap.signals.wait_on(stream, label, word, tag, owner, ADD, operation)?;
        let slot = heap.return_slot(n);
        let piece = |run: Run| {
            let row = if run.value { call.dims.v_row() } else { call.dims.k_row() } * 4;
            let (part, there) = (usize::from(run.value), slot + run.at * 4);
            Piece { part, here: run.row * row, there, len: run.rows * row }
        };
        let pieces: Vec<Piece> = runs(call, me, stage, owner, false).into_iter().map(piece).collect();
        let bytes = pieces.iter().map(|piece| piece.len as u64).sum();
        let label = call.label(Kind::Put, stage).bytes(bytes).peer(owner);
        let arrived = heap.word(Purpose::Arrived, me);
        heap.buffer.put_signal(stream, label, owner, pieces, grads, &heap.signals, arrived, tag)?;
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
    Ok(heap.signals.set_on(stream, label, &[contribution.writer], word, tag(call.epoch, n))?)
}

/// Elements of the largest contribution to this PE's rows.
pub(super) fn largest(call: &Call) -> usize {
    let contributions = call.plan.contributions(call.me);
    contributions.iter().map(|contribution| elements(call, contribution)).max().unwrap_or(0)
}

/// Queues the adding of all contributions to this PE's rows into `home`, in the plan's order; each is brought into
/// `arrived` first where the kernels want it.
pub(super) fn add_all(
    heap: &Heap,
    stream: &Stream,
    kernels: &Arc<dyn Kernels>,
    call: &Call,
    arrived: &mut Filling<Array>,
    home: &mut Filling<Grads>,
) -> Result<(), Error> {
    let contributions = call.plan.contributions(call.me);
    for (n, contribution) in contributions.iter().enumerate() {
        let (writer, stage) = (contribution.writer, contribution.stage);
        let operation = call.operation("gradient return", stage);
        let (word, label) = (heap.word(Purpose::Arrived, writer), call.label(Kind::Wait, stage).peer(writer));
        heap.signals.wait_on(stream, label, word, tag(call.epoch, n), writer, RETURN, operation)?;
        let (len, slot) = (elements(call, contribution) * 4, heap.return_slot(n));
        let label = call.label(Kind::Add, stage).peer(writer);
        if kernels.brings() {
            heap.buffer.get(stream, label.clone(), call.me, vec![Piece::first(len, slot)], arrived)?;
        }
        let runs = runs(call, writer, stage, call.me, true);
        let (own, heap_of_work, kernels) = (call.clone(), heap.clone(), kernels.clone());
        stream.launch(label.bytes(len as u64), (&mut *home, &mut *arrived), move |(home, arrived)| {
            kernels.add(&own, &heap_of_work, slot, arrived, &runs, home).map_err(Error::into_fault)
        })?;
        let next = n + heap.return_slots;
        if let Some(contribution) = contributions.get(next) {
            grant(heap, stream, call, next, contribution)?;
        }
    }
    Ok(())
}

fn elements(call: &Call, contribution: &Contribution) -> usize {
    contribution.rows * (call.dims.k_row() + call.dims.v_row())
}

//! Publish, agree and fetch: how K and V get from their owner to their readers on the communication stream.
//!
//! `docs/protocol.md` states the protocol.

use super::Engine;
use super::call::Call;
use super::device::Link;
use super::heap::{Heap, Purpose};
use crate::array::Array;
use crate::error::Error;
use longreach_device::{Bytes, BytesMut, Event, Kind, Label, Parts, Pending, Slot, Stream};
use longreach_shmem::{Piece, Team};
use std::collections::{BTreeMap, BTreeSet};

/// The stream that publishes and fetches.
pub(super) const COMM: &str = "comm";
/// The stream that computes.
pub(super) const COMPUTE: &str = "compute";
/// The stream that sends contributions to their owners.
pub(super) const RETURN: &str = "return";
/// The stream that adds contributions where they belong.
pub(super) const ADD: &str = "add";

/// K and V rows: a PE's own, or those of a fetched stage.
pub(super) struct Rows {
    pub(super) k: Array,
    pub(super) v: Array,
}

/// Part 0 is K, part 1 is V.
impl Parts for Rows {
    fn part(&self, part: usize) -> Option<Bytes<'_>> {
        [&self.k, &self.v].get(part)?.part(0)
    }

    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>> {
        match part {
            0 => self.k.part_mut(0),
            1 => self.v.part_mut(0),
            _ => None,
        }
    }
}

/// The exchange of one call on this PE, as it is queued.
pub(super) struct Exchange<'c> {
    engine: &'c Engine,
    team: &'c Team,
    heap: &'c Heap,
    comm: &'c Stream,
    call: &'c Call,
    /// Owners whose description has been compared already.
    agreed: BTreeSet<usize>,
    /// The stage in which each owner is read last.
    last: BTreeMap<usize, usize>,
}

impl<'c> Exchange<'c> {
    pub(super) fn new(engine: &'c Engine, call: &'c Call) -> Self {
        let Engine { team, heap, comm, .. } = engine;
        let mut last = BTreeMap::new();
        for (stage, plan) in call.pe_plan().stages.iter().enumerate() {
            for get in &plan.gets {
                last.insert(get.owner, stage);
            }
        }
        Self { engine, team, heap, comm, call, agreed: BTreeSet::new(), last }
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        let me = self.call.me;
        // Staggered, so that PEs do not all turn to the same peer first.
        let size = self.team.size();
        (1..size).map(move |step| (me + step) % size)
    }

    /// Queues the publication of this PE's K and V under the call's epoch.
    pub(super) fn publish(&self, own: &Pending<Rows>) -> Result<(), Error> {
        let call = self.call;
        let (heap, epoch, me) = (self.heap, call.epoch, call.me);
        // The slot holds epoch - 2 until everybody has consumed that.
        if let Some(before) = epoch.checked_sub(2).filter(|&before| before > 0) {
            for peer in self.peers() {
                let (word, operation) = (heap.word(Purpose::Consumed, peer), call.operation("publish", 0));
                let label = call.label(Kind::Wait, 0).peer(peer);
                heap.signals.wait_on(self.comm, label, word, before, peer, COMM, operation)?;
            }
        }
        if !call.plan.readers(me).is_empty() {
            let [k, v] = call.kv_bytes(me);
            let there = heap.publication(epoch);
            let pieces = vec![
                Piece { part: 0, here: 0, there, len: k },
                Piece { part: 1, here: 0, there: there + aligned(k), len: v },
            ];
            let loan = own.on(call.label(Kind::Wait, 0), self.comm);
            let label = call.label(Kind::Publish, 0).bytes((k + v) as u64);
            heap.buffer.put(self.comm, label, me, pieces, &loan)?;
            loan.give_back(self.comm)?;
        }
        // Behind the rows: a header that is there says that they are.
        let (header, description) = (heap.clone(), call.description.clone());
        self.comm.launch(call.label(Kind::Publish, 0).of_host(), (), move |()| {
            header.write_header(me, epoch, &description).map_err(Error::into_fault)
        })?;
        let (peers, word) = (self.peers().collect::<Vec<_>>(), heap.word(Purpose::Published, me));
        heap.signals.set_on(self.comm, call.label(Kind::Publish, 0), &peers, word, epoch)?;
        self.engine.wait_for_turn(self.comm, call)
    }

    /// Queues the comparison of `owner`'s description with this PE's, once a call.
    fn agree(&mut self, owner: usize, stage: usize) -> Result<(), Error> {
        if !self.agreed.insert(owner) {
            return Ok(());
        }
        let call = self.call;
        let (heap, team, epoch) = (self.heap.clone(), self.team.clone(), call.epoch);
        let operation = call.operation("get", stage);
        let description = call.description.clone();
        let (label, word) = (call.label(Kind::Wait, stage).peer(owner), heap.word(Purpose::Published, owner));
        heap.signals.wait_on(self.comm, label.clone(), word, epoch, owner, COMM, operation)?;
        self.comm.launch(label.of_host(), (), move |()| {
            let compare = || -> Result<(), Error> {
                let (theirs, digest) = heap.read_digest(owner, epoch)?;
                if theirs == epoch && digest == description.digest() {
                    return Ok(());
                }
                let found = description.compare(&heap.read_description(owner, epoch)?);
                let (me, peer) = (team.ranks()[team.rank()], team.ranks()[owner]);
                Err(match found {
                    Err(found) => team.refuse(&format!(
                        "its call differs from PE {peer}'s in `{}`: PE {me} has {}, PE {peer} has {}; all PEs of a team must make the same call",
                        found.field, found.mine, found.theirs
                    )),
                    Ok(()) => team.refuse(&format!(
                        "PE {peer}'s publication has epoch {theirs} and digest {digest:016x}, and was to have epoch {epoch} and digest {:016x}",
                        description.digest()
                    )),
                }
                .into())
            };
            compare().map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues the gets of `stage` into `slot`.
    pub(super) fn fetch(&mut self, stage: usize, slot: Slot<Rows>) -> Result<Pending<Rows>, Error> {
        let call = self.call;
        let mut filling = slot.fill(call.label(Kind::Wait, stage), self.comm);
        let owners: Vec<usize> = owners_in_order(call, stage);
        for &owner in &owners {
            self.agree(owner, stage)?;
            let pieces = pieces(call, stage, owner, self.heap.publication(call.epoch));
            let bytes = pieces.iter().map(|piece| piece.len as u64).sum();
            let label = call.label(Kind::Get, stage).peer(owner);
            self.on_link(label.clone(), |link| link.begin())?;
            self.heap.buffer.get(self.comm, label.clone().bytes(bytes), owner, pieces, &mut filling)?;
            self.on_link(label, move |link| link.end(bytes))?;
            if self.last.get(&owner) == Some(&stage) {
                self.consumed(owner, stage)?;
            }
        }
        Ok(filling.finish(self.comm)?)
    }

    /// Queues what the emulated link does, where there is one.
    fn on_link(
        &self,
        label: Label,
        work: impl FnOnce(&dyn Link) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        if let Some(link) = self.engine.link.clone() {
            self.comm.launch(label, (), move |()| work(&*link).map_err(Error::into_fault))?;
        }
        Ok(())
    }

    fn consumed(&self, owner: usize, stage: usize) -> Result<(), Error> {
        let word = self.heap.word(Purpose::Consumed, self.call.me);
        let label = self.call.label(Kind::Publish, stage).peer(owner);
        Ok(self.heap.signals.set_on(self.comm, label, &[owner], word, self.call.epoch)?)
    }

    /// Queues the comparison with all PEs that nothing was fetched from; after the event the call is agreed.
    pub(super) fn finish(mut self) -> Result<Event, Error> {
        let stage = self.call.fetched();
        for peer in self.peers().collect::<Vec<_>>() {
            if !self.last.contains_key(&peer) {
                #[cfg(shuttle)]
                if longreach_device::sync::omitted::is("agreement with all") {
                    self.consumed(peer, stage)?;
                    continue;
                }
                self.agree(peer, stage)?;
                self.consumed(peer, stage)?;
            }
        }
        Ok(self.comm.record())
    }
}

/// The owners that `stage` fetches from, each once, in the plan's order.
pub(super) fn owners_in_order(call: &Call, stage: usize) -> Vec<usize> {
    let mut owners = Vec::new();
    for get in &call.stage(stage).gets {
        if !owners.contains(&get.owner) {
            owners.push(get.owner);
        }
    }
    owners
}

/// Where the rows that a stage fetches from `owner` are, in its publication that begins at `there` and in the stage's
/// rows.
fn pieces(call: &Call, stage: usize, owner: usize, there: usize) -> Vec<Piece> {
    let owned = call.plan.pes[owner].kv_rows;
    let plan = call.stage(stage);
    let size = call.dims.dtype.size();
    let (k_row, v_row) = (call.dims.k_row() * size, call.dims.v_row() * size);
    let values = there + aligned(call.kv_bytes(owner)[0]);
    let mut pieces = Vec::new();
    for get in plan.gets.iter().filter(|get| get.owner == owner) {
        for b in get.batch.clone() {
            let (from, to, rows) = (b * owned + get.rows.start, b * plan.rows + get.at, get.rows.len());
            let piece =
                |part, base, row| Piece { part, here: to * row, there: base + from * row, len: rows * row };
            pieces.extend([piece(0, there, k_row), piece(1, values, v_row)]);
        }
    }
    pieces
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

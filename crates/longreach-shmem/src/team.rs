//! Teams: PEs in an order, for collective calls among them.

use crate::blame::{HOST, Node};
use crate::copy;
use crate::error::Error;
use crate::failure::{FailureKind, Operation};
use crate::gather::{Collective, Given};
use crate::limits::address_space;
use crate::region::Part;
use crate::signals::Signals;
use crate::symmetric::Symmetric;
use crate::transport::Transport;
use crate::world::{Pe, Shared};
use longreach_device::cuda::Gpu;
use longreach_device::sync::{AtomicU64, Ordering};
use longreach_device::{Event, Label, Stream, Timeline, Watch};
use std::sync::Arc;

/// Some PEs of a world in an order of their own. Cloning gives another handle of the same team on the same PE.
#[derive(Clone)]
pub struct Team {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<Shared>,
    watch: Arc<dyn Watch>,
    id: u64,
    ranks: Vec<usize>,
    rank: usize,
    /// Collective calls so far; all members make them in the same order, so the count names a call.
    calls: AtomicU64,
}

impl Team {
    pub(crate) fn new(pe: &Pe, ranks: &[usize]) -> Result<Self, Error> {
        let bad = |reason| Error::BadTeam { ranks: ranks.to_vec(), pe: pe.number(), pes: pe.pes(), reason };
        if ranks.iter().any(|&rank| rank >= pe.pes()) {
            return Err(bad("a rank is not a PE of the world"));
        }
        if (1..ranks.len()).any(|i| ranks[..i].contains(&ranks[i])) {
            return Err(bad("a PE is named twice"));
        }
        let rank = ranks.iter().position(|&rank| rank == pe.number());
        let rank = rank.ok_or_else(|| bad("the PE that asks is not in it"))?;
        // The first member's offer counts; members that make several teams of the same PEs make them in order.
        // Offers of different PEs differ, so that no two teams of a world have the same number.
        // Relaxed: only the count matters.
        let offer = pe.shared.teams.fetch_add(1, Ordering::Relaxed) * pe.pes() as u64 + pe.number() as u64;
        let called = format!("team {ranks:?}");
        let collective =
            Collective { key: &called, members: ranks, rank, stream: HOST, name: "team creation" };
        let offers = pe.shared.gather(&collective, offer, None)?;
        // Nobody may start the next gathering under this key while another still takes from this one.
        let id = offers[0].value;
        let collective = Collective { key: &format!("team {id} made"), ..collective };
        pe.shared.gather(&collective, 0, None)?;
        Ok(Self {
            inner: Arc::new(Inner {
                world: pe.shared.clone(),
                watch: pe.watch(),
                id,
                ranks: ranks.to_vec(),
                rank,
                calls: AtomicU64::new(0),
            }),
        })
    }

    /// This PE's rank in the team.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Number of PEs in the team.
    pub fn size(&self) -> usize {
        self.inner.ranks.len()
    }

    /// The world's numbers of the team's PEs, in team order.
    pub fn ranks(&self) -> &[usize] {
        &self.inner.ranks
    }

    /// A record for streams of this PE; its seconds count from the world's origin.
    pub fn timeline(&self) -> Timeline {
        Timeline::new(self.inner.world.origin)
    }

    /// The world's failure, if it has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.world.check()
    }

    /// Starts a stream of this PE for the team, whose spans go to `timeline`. `role` is the same on all members for
    /// streams that do the same, and not `host`, which names a PE's own thread.
    pub fn stream(&self, role: &str, timeline: &Timeline) -> Result<Stream, Error> {
        let name = self.stream_name(role);
        Ok(Stream::new(&name, timeline.clone(), self.inner.watch.clone())?)
    }

    /// Says that a piece of work (a tile, a transfer) is done; peers' deadlines count from it.
    pub fn tick(&self) {
        self.ledger().tick();
    }

    /// Says what this PE does from now on: that is what is said of it if its process dies or its program fails.
    pub fn begins(&self, operation: Operation) {
        self.ledger().begin(operation);
    }

    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.world
    }

    fn ledger(&self) -> &dyn crate::transport::Ledger {
        self.inner.world.transport.ledger(self.inner.ranks[self.inner.rank])
    }

    /// Allocates `bytes` of symmetric memory on each PE, zeroed. Collective over the team; all give the same size.
    pub fn allocate(&self, bytes: usize) -> Result<Symmetric, Error> {
        Symmetric::allocate(self, bytes)
    }

    /// Allocates `bytes` of symmetric memory on each PE's GPU, zeroed. Collective over the team; all give the same size,
    /// each its own GPU. The host cannot read or write it: streams of that GPU do.
    pub fn allocate_on(&self, gpu: &Arc<Gpu>, bytes: usize) -> Result<Symmetric, Error> {
        Symmetric::allocate_on(self, gpu, bytes)
    }

    /// Allocates `count` signal words on each PE, all 0. Collective over the team; all give the same count.
    pub fn signals(&self, count: usize) -> Result<Signals, Error> {
        Signals::allocate(self, count)
    }

    /// Returns when all PEs of the team have called it. Collective over the team.
    pub fn barrier(&self) -> Result<(), Error> {
        self.gather("barrier", 0, None).map(drop)
    }

    /// Queues a barrier on `stream`: work queued behind it runs when the streams of that role of all PEs of the team
    /// have come to theirs. Collective over the team.
    pub fn barrier_on(&self, stream: &Stream, label: Label) -> Result<(), Error> {
        // Counted now: the host's order of calls is what all PEs have in common.
        let (team, key, name) = (self.clone(), self.next_call(), stream.name().clone());
        stream.launch(label, (), move |()| {
            team.gather_as(&key, &name, "stream barrier", 0, None).map(drop).map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues a fence on `stream`: what it puts and signals before the fence arrives at each PE before what it puts
    /// and signals after it. Costs next to nothing here, where a stream's transfers are complete one by one.
    pub fn fence(&self, stream: &Stream, label: Label) -> Result<(), Error> {
        stream.launch(label, (), |()| {
            copy::fence();
            Ok(())
        })?;
        Ok(())
    }

    /// Queues a quiet on `stream`: when the event is complete, all puts and signals that the stream was given before
    /// are where they belong. Here a transfer is complete when its stream has run it, so this is a fence and a
    /// record.
    pub fn quiet(&self, stream: &Stream, label: Label) -> Result<Event, Error> {
        self.fence(stream, label)?;
        Ok(stream.record())
    }

    /// Fails the world in this PE's name, because it refuses a call for `reason`; returns the failure that counts.
    pub fn refuse(&self, reason: &str) -> Error {
        self.fail_as(FailureKind::Refused, reason)
    }

    /// Fails the world in this PE's name, because it cannot go on for `reason`; returns the failure that counts.
    pub fn fail(&self, reason: &str) -> Error {
        self.fail_as(FailureKind::Failed, reason)
    }

    fn fail_as(&self, kind: FailureKind, reason: &str) -> Error {
        self.inner.world.fail_by(kind, self.inner.ranks[self.inner.rank], reason.to_owned())
    }

    /// Blocks this PE's stream of role `role` until `ready`, blaming team rank `peer`'s stream of role `theirs`
    /// (or whom that one waits for) when the deadline passes.
    pub fn wait_until(
        &self,
        role: &str,
        peer: usize,
        theirs: &str,
        operation: Operation,
        ready: impl Fn() -> bool,
    ) -> Result<(), Error> {
        self.wait_as(&self.stream_name(role), peer, theirs, operation, ready)
    }

    /// As [`Team::wait_until`], for this PE's stream called `stream`.
    pub(crate) fn wait_as(
        &self,
        stream: &str,
        peer: usize,
        theirs: &str,
        operation: Operation,
        ready: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let target = Node { pe: self.world_rank(peer)?, stream: self.stream_name(theirs) };
        let pe = self.inner.ranks[self.inner.rank];
        self.inner.world.wait(pe, stream, &target, operation, ready)
    }

    /// Runs `wait`, during which this PE's own thread waits for its stream of role `role`.
    pub fn host_waits<T>(&self, role: &str, wait: impl FnOnce() -> T) -> T {
        self.inner.watch.waits(HOST, &self.stream_name(role));
        let value = wait();
        self.inner.watch.runs(HOST);
        value
    }

    /// Starts a stream of this PE on a GPU, as [`Team::stream`].
    pub fn stream_on(&self, role: &str, timeline: &Timeline, gpu: &Arc<Gpu>) -> Result<Stream, Error> {
        let name = self.stream_name(role);
        Ok(Stream::on_gpu(&name, timeline.clone(), self.inner.watch.clone(), gpu)?)
    }

    /// Allocates on each PE with `own`, and returns all PEs' parts. All must give the same `amount`, which errors call
    /// `what`; where a rank, whose process may have so many bytes of address space, has none, the error is `missing`'s.
    pub(crate) fn share(
        &self,
        call: &'static str,
        what: &'static str,
        amount: usize,
        missing: impl Fn(usize, Option<u64>) -> Error,
        own: impl FnOnce(&dyn Transport) -> Option<Part>,
    ) -> Result<Vec<Part>, Error> {
        agreed(what, &self.gather(call, amount as u64, None)?)?;
        let own = own(&*self.inner.world.transport);
        let lack = |has: bool| if has { 0 } else { address_space().unwrap_or(u64::MAX) };
        // What a PE lacks it tells all, so that all have the same error: 0 is nothing, else it is the PE's limit.
        let had = |given: &[Given]| match given.iter().position(|given| given.value > 0) {
            None => Ok(()),
            Some(rank) => Err(missing(rank, Some(given[rank].value).filter(|&limit| limit < u64::MAX))),
        };
        let given = self.gather(call, lack(own.is_some()), own)?;
        had(&given)?;
        let size = given.len();
        let parts: Vec<Part> = given.into_iter().filter_map(|given| given.part).collect();
        // A PE may also lack the room to see another one's part.
        had(&self.gather(call, lack(parts.len() == size), None)?)?;
        Ok(parts)
    }

    pub(crate) fn gather(
        &self,
        name: &'static str,
        value: u64,
        part: Option<Part>,
    ) -> Result<Vec<Given>, Error> {
        self.gather_as(&self.next_call(), HOST, name, value, part)
    }

    fn gather_as(
        &self,
        key: &str,
        stream: &str,
        name: &'static str,
        value: u64,
        part: Option<Part>,
    ) -> Result<Vec<Given>, Error> {
        let collective = Collective { key, members: &self.inner.ranks, rank: self.inner.rank, stream, name };
        self.inner.world.gather(&collective, value, part)
    }

    fn next_call(&self) -> String {
        // Relaxed: one PE's own count, its calls come one after another.
        let call = self.inner.calls.fetch_add(1, Ordering::Relaxed);
        format!("team {} call {call}", self.inner.id)
    }

    pub(crate) fn world_rank(&self, rank: usize) -> Result<usize, Error> {
        let size = self.size();
        self.inner.ranks.get(rank).copied().ok_or(Error::NoSuchRank { rank, size })
    }

    pub(crate) fn ring(&self, rank: usize) {
        self.inner.world.transport.ring(self.inner.ranks[rank]);
    }

    fn stream_name(&self, role: &str) -> String {
        match role {
            // A PE has one thread of its own, whatever team it works for.
            HOST => HOST.to_owned(),
            role => format!("{role}@{}", self.inner.id),
        }
    }
}

/// Fails when the members of a collective call gave different values for `what`.
pub(crate) fn agreed(what: &'static str, given: &[Given]) -> Result<(), Error> {
    match given.iter().position(|other| other.value != given[0].value) {
        None => Ok(()),
        Some(second) => Err(Error::Disagreement {
            what,
            first: 0,
            first_value: given[0].value.to_string(),
            second,
            second_value: given[second].value.to_string(),
        }),
    }
}

//! What a world needs of its transport: who is where, what is known of each PE, how they wake each other, and how
//! what one allocates gets to the others.

use crate::blame::Record;
use crate::failure::{Failure, Operation};
use crate::gather::{Collective, Given};
use crate::region::Part;
use longreach_device::cuda::Gpu;
use std::sync::Arc;
use std::time::Duration;

/// A transport, as one process sees it.
pub(crate) trait Transport: Send + Sync {
    /// The PE of this process, where each PE is a process; none where all PEs are threads of this one.
    fn own(&self) -> Option<usize>;

    /// What is known of a PE.
    fn ledger(&self, pe: usize) -> &dyn Ledger;

    /// Wakes all who wait on behalf of `pe`; to be called after the change that they wait for.
    fn ring(&self, pe: usize);

    /// Sleeps on behalf of `pe`, a PE of this process, until rung or until `timeout` has passed, unless `ready` holds
    /// already; returns `ready`.
    fn sleep(&self, pe: usize, timeout: Duration, ready: &dyn Fn() -> bool) -> bool;

    /// The world's failure, if it has failed. Looked at by every transfer, so it is cheap and orders no PEs.
    fn failure(&self) -> Option<Arc<Failure>>;

    /// Makes `failure` the world's, unless it has failed already; returns the one that counts. Wakes nobody.
    fn fail(&self, failure: Failure) -> Arc<Failure>;

    /// Begins run `run` of the programs of this process's PEs; fails where another PE is gone for good.
    fn begin(&self, run: u64) -> Result<(), Failure>;

    /// Memory of this process's PE that other PEs can be given; none where it cannot be had.
    fn bytes(&self, len: usize) -> Option<Part>;

    /// As [`Transport::bytes`], of a GPU's memory.
    fn bytes_of_gpu(&self, gpu: &Arc<Gpu>, len: usize) -> Option<Part>;

    /// As [`Transport::bytes`], for signal words, all 0.
    fn words(&self, count: usize) -> Option<Part>;

    /// Gives a member's part of a collective call to all members.
    fn give(&self, collective: &Collective, given: Given);

    /// Whether member `rank` has given.
    fn has_given(&self, collective: &Collective, rank: usize) -> bool;

    /// Takes what all members have given, in rank order; each member calls it once, when all have given. A part that
    /// cannot be reached from here is left out.
    fn take(&self, collective: &Collective) -> Vec<Given>;
}

/// What everybody may know of a PE.
pub(crate) trait Ledger: Send + Sync {
    /// Says that a piece of work (a tile, a transfer) is done.
    fn tick(&self);

    /// Pieces of work done so far.
    fn progress(&self) -> u64;

    /// Says that a thread of the PE that waits for another PE is alive.
    fn beat(&self);

    /// Times that one has.
    fn beats(&self) -> u64;

    /// Says that the PE's program has ended run `run`.
    fn finish(&self, run: u64);

    /// The last run that the PE's program has ended, from 1.
    fn finished(&self) -> u64;

    /// Notes that a stream of the PE begins a piece of work, or ends it.
    fn work(&self, working: bool);

    /// Whether one is at work.
    fn working(&self) -> bool;

    /// Notes that `stream` waits.
    fn wait(&self, stream: &str, record: Record);

    /// Notes that `stream` waits no more.
    fn run(&self, stream: &str);

    /// What `stream` waits for, if it does.
    fn record(&self, stream: &str) -> Option<Record>;

    /// Notes what the PE is doing from now on.
    fn begin(&self, operation: Operation);

    /// What the PE is doing, and for how long.
    fn doing(&self) -> Option<(Operation, Duration)>;

    /// Notes that the PE has told its user of the world's failure.
    fn set_reported(&self);

    /// Whether it has.
    fn reported(&self) -> bool;
}

//! Who waits for whom, and who is to blame when a deadline passes.
//!
//! Each PE has a progress counter and a record of what each of its streams waits for, readable by all. A waiter
//! whose deadline passes follows the records, stream by stream, to the PE that neither waits nor progresses.

use crate::failure::Operation;
use longreach_device::Watch;
use longreach_device::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use std::collections::HashMap;
use std::sync::Arc;

/// The name under which a PE's own thread records its waits.
pub const HOST: &str = "host";

/// A stream of a PE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The PE's number in the world.
    pub pe: usize,
    /// The stream's name there.
    pub stream: String,
}

/// What a stream waits for.
#[derive(Clone, Debug)]
pub struct Record {
    /// Whose work would end the wait.
    pub target: Node,
    /// What is waited for; none for waits inside a PE.
    pub operation: Option<Operation>,
}

/// What everybody may know of a PE.
#[derive(Debug, Default)]
pub struct Ledger {
    progress: AtomicU64,
    ended: AtomicBool,
    waits: Mutex<HashMap<String, Record>>,
}

impl Ledger {
    /// Says that a piece of work (a tile, a transfer) is done.
    pub fn tick(&self) {
        // Relaxed: a count for deadlines, it orders nothing.
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Pieces of work done so far.
    pub fn progress(&self) -> u64 {
        // Relaxed: as in `tick`.
        self.progress.load(Ordering::Relaxed)
    }

    /// Says whether the PE's program is running.
    pub fn set_ended(&self, ended: bool) {
        // Release: pairs with `ended`, so that who sees the end sees the PE's last signals.
        self.ended.store(ended, Ordering::Release);
    }

    /// Whether the PE's program has ended.
    pub fn ended(&self) -> bool {
        // Acquire: pairs with `set_ended`.
        self.ended.load(Ordering::Acquire)
    }

    /// Notes that `stream` waits.
    pub fn wait(&self, stream: &str, record: Record) {
        lock(&self.waits).insert(stream.to_owned(), record);
    }

    /// Notes that `stream` waits no more.
    pub fn run(&self, stream: &str) {
        lock(&self.waits).remove(stream);
        self.tick();
    }

    fn record(&self, stream: &str) -> Option<Record> {
        lock(&self.waits).get(stream).cloned()
    }
}

/// Notes waits between the streams of one PE in its ledger.
pub struct LocalWaits {
    /// The PE's number in the world.
    pub pe: usize,
    /// Its ledger.
    pub ledger: Arc<Ledger>,
}

impl Watch for LocalWaits {
    fn waits(&self, stream: &str, producer: &str) {
        let target = Node { pe: self.pe, stream: producer.to_owned() };
        self.ledger.wait(stream, Record { target, operation: None });
    }
    fn runs(&self, stream: &str) {
        self.ledger.run(stream);
    }
}

/// Where a chain of waits ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// A PE that waits for nobody; `operation` is what it is waited for.
    Runs {
        /// The PE.
        pe: usize,
        /// What the last waiter of the chain waits for.
        operation: Operation,
    },
    /// A PE whose program has ended.
    Ended {
        /// The PE.
        pe: usize,
        /// What the last waiter of the chain waits for.
        operation: Operation,
    },
    /// The chain bites its tail.
    Circle(Vec<usize>),
}

/// Follows the waits from `start`, which is waited for by `operation`.
pub fn culprit(ledgers: &[Arc<Ledger>], start: &Node, operation: Operation) -> Culprit {
    let mut visited: Vec<Node> = Vec::new();
    let mut node = start.clone();
    let mut operation = operation;
    // A stream without a record is either at work or has nothing queued because its host waits elsewhere.
    let mut at_work: Option<(usize, Operation)> = None;
    loop {
        if visited.contains(&node) {
            return match at_work {
                Some((pe, operation)) => Culprit::Runs { pe, operation },
                None => Culprit::Circle(visited.into_iter().map(|node| node.pe).collect()),
            };
        }
        let ledger = &ledgers[node.pe];
        visited.push(node.clone());
        match ledger.record(&node.stream) {
            Some(record) => {
                operation = record.operation.unwrap_or(operation);
                node = record.target;
            }
            // Asked last: streams may outlive the program, with results that it returned unread, and still wait.
            None if ledger.ended() => {
                return Culprit::Ended { pe: node.pe, operation };
            }
            None if node.stream == HOST => {
                return Culprit::Runs { pe: node.pe, operation };
            }
            None => {
                at_work.get_or_insert((node.pe, operation));
                node = Node { pe: node.pe, stream: HOST.to_owned() };
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn node(pe: usize, stream: &str) -> Node {
        Node { pe, stream: stream.to_owned() }
    }

    fn ledgers(waits: &[(usize, &str, usize, &str)], pes: usize) -> Vec<Arc<Ledger>> {
        let ledgers: Vec<_> = (0..pes).map(|_| Arc::new(Ledger::default())).collect();
        for &(pe, stream, peer, target) in waits {
            let operation = Some(Operation { name: "get", stage: Some(1), epoch: peer as u64 });
            ledgers[pe].wait(stream, Record { target: node(peer, target), operation });
        }
        ledgers
    }

    const ASKED: Operation = Operation { name: "get", stage: Some(1), epoch: 9 };

    #[test]
    fn a_chain_leads_to_the_one_that_runs() {
        let ledgers = ledgers(&[(3, "comm", 2, "comm"), (2, "comm", 1, "comm")], 4);
        let found = culprit(&ledgers, &node(2, "comm"), ASKED);
        let operation = Operation { name: "get", stage: Some(1), epoch: 1 };
        assert_eq!(found, Culprit::Runs { pe: 1, operation });
    }

    #[test]
    fn an_idle_stream_leads_to_what_its_host_waits_for() {
        let ledgers = ledgers(&[(2, HOST, 3, HOST)], 4);
        assert!(matches!(culprit(&ledgers, &node(2, "comm"), ASKED), Culprit::Runs { pe: 3, .. }));
    }

    #[test]
    fn a_stream_at_work_is_to_blame_though_its_host_waits_for_it() {
        let ledgers = ledgers(&[(2, HOST, 2, "compute"), (2, "compute", 2, "comm")], 3);
        assert!(matches!(culprit(&ledgers, &node(2, "comm"), ASKED), Culprit::Runs { pe: 2, .. }));
    }

    #[test]
    fn a_circle_is_reported_as_such() {
        let ledgers = ledgers(&[(0, "comm", 1, "comm"), (1, "comm", 2, "comm"), (2, "comm", 0, "comm")], 3);
        assert_eq!(culprit(&ledgers, &node(1, "comm"), ASKED), Culprit::Circle(vec![1, 2, 0]));
    }

    #[test]
    fn an_ended_pe_is_told_apart() {
        let ledgers = ledgers(&[(0, "comm", 1, "comm")], 2);
        ledgers[1].set_ended(true);
        assert_eq!(
            culprit(&ledgers, &node(0, "comm"), ASKED),
            Culprit::Ended { pe: 1, operation: Operation { epoch: 1, ..ASKED } }
        );
    }

    #[test]
    fn a_stream_that_outlives_its_program_is_followed() {
        let ledgers = ledgers(&[(1, "return", 2, "add")], 3);
        ledgers[1].set_ended(true);
        assert!(matches!(culprit(&ledgers, &node(1, "return"), ASKED), Culprit::Runs { pe: 2, .. }));
    }
}

//! Who waits for whom, and who is to blame when a deadline passes.
//!
//! Each PE has a progress counter and a record of what each of its streams waits for, readable by all. A waiter
//! whose deadline passes follows the records, stream by stream, to the PE that neither waits nor progresses.

use crate::failure::{FailureKind, Operation};
use crate::transport::Ledger;
use crate::world::Shared;
use longreach_device::{Fault, Watch};
use std::sync::Arc;

/// The name under which a PE's own thread records its waits.
pub(crate) const HOST: &str = "host";

/// A stream of a PE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The PE's number in the world.
    pub(crate) pe: usize,
    /// The stream's name there.
    pub(crate) stream: String,
}

/// What a stream waits for.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Whose work would end the wait.
    pub(crate) target: Node,
    /// What is waited for; none for waits inside a PE.
    pub(crate) operation: Option<Operation>,
}

/// Notes waits between the streams of one PE in its ledger.
pub(crate) struct LocalWaits {
    /// The PE's number in the world.
    pub(crate) pe: usize,
    /// Has its ledger, and learns of its failures.
    pub(crate) world: Arc<Shared>,
}

impl Watch for LocalWaits {
    fn waits(&self, stream: &str, producer: &str) {
        let target = Node { pe: self.pe, stream: producer.to_owned() };
        self.world.transport.ledger(self.pe).wait(stream, Record { target, operation: None });
    }
    fn runs(&self, stream: &str) {
        self.world.transport.ledger(self.pe).run(stream);
    }
    fn works(&self, working: bool) {
        self.world.transport.ledger(self.pe).work(working);
    }
    fn failed(&self, stream: &str, fault: &Fault) {
        // Its host may look at the stream much later; the others wait for it now.
        let stream = stream.split('@').next().unwrap_or(stream);
        self.world.fail_by(FailureKind::Failed, self.pe, format!("{fault} (on its stream `{stream}`)"));
    }
}

/// Where a chain of waits ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Culprit {
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

/// Follows the waits from `start`, which is waited for by `operation` in run `run` of the world.
///
/// What a PE notes as its wait may be long over, if it has been stopped before it could say so: `frozen` tells whether
/// no thread of a PE that waits for another one has been seen alive for too long.
pub(crate) fn culprit<'l>(
    ledger: impl Fn(usize) -> &'l dyn Ledger,
    run: u64,
    start: &Node,
    operation: Operation,
    mut frozen: impl FnMut(usize) -> bool,
) -> Culprit {
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
        let ledger = ledger(node.pe);
        visited.push(node.clone());
        match ledger.record(&node.stream) {
            Some(_) if frozen(node.pe) => return Culprit::Runs { pe: node.pe, operation },
            Some(record) => {
                operation = record.operation.unwrap_or(operation);
                node = record.target;
            }
            // Asked last: streams may outlive the program, with results that it returned unread, and still wait.
            None if ledger.finished() >= run && !ledger.working() => {
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
    use crate::threads::Threads;
    use crate::transport::Transport;

    fn node(pe: usize, stream: &str) -> Node {
        Node { pe, stream: stream.to_owned() }
    }

    fn ledgers(waits: &[(usize, &str, usize, &str)], pes: usize) -> Threads {
        let ledgers = Threads::new(pes);
        for &(pe, stream, peer, target) in waits {
            let operation = Some(Operation { name: "get", stage: Some(1), epoch: peer as u64 });
            ledgers.ledger(pe).wait(stream, Record { target: node(peer, target), operation });
        }
        ledgers
    }

    fn found(ledgers: &Threads, start: Node) -> Culprit {
        culprit(|pe| ledgers.ledger(pe), 1, &start, ASKED, |pe| pe == FROZEN)
    }

    const FROZEN: usize = 9;

    #[test]
    fn a_stopped_pe_is_to_blame_whatever_it_seems_to_wait_for() {
        let waits = [(0, "comm", FROZEN, "comm"), (FROZEN, "comm", 0, "comm")];
        let culprit = found(&ledgers(&waits, 10), node(0, "comm"));
        assert!(matches!(culprit, Culprit::Runs { pe: FROZEN, .. }), "{culprit:?}");
    }

    const ASKED: Operation = Operation { name: "get", stage: Some(1), epoch: 9 };

    #[test]
    fn a_chain_leads_to_the_one_that_runs() {
        let ledgers = ledgers(&[(3, "comm", 2, "comm"), (2, "comm", 1, "comm")], 4);
        let culprit = found(&ledgers, node(2, "comm"));
        let operation = Operation { name: "get", stage: Some(1), epoch: 1 };
        assert_eq!(culprit, Culprit::Runs { pe: 1, operation });
    }

    #[test]
    fn an_idle_stream_leads_to_what_its_host_waits_for() {
        let ledgers = ledgers(&[(2, HOST, 3, HOST)], 4);
        assert!(matches!(found(&ledgers, node(2, "comm")), Culprit::Runs { pe: 3, .. }));
    }

    #[test]
    fn a_stream_at_work_is_to_blame_though_its_host_waits_for_it() {
        let ledgers = ledgers(&[(2, HOST, 2, "compute"), (2, "compute", 2, "comm")], 3);
        assert!(matches!(found(&ledgers, node(2, "comm")), Culprit::Runs { pe: 2, .. }));
    }

    #[test]
    fn a_circle_is_reported_as_such() {
        let ledgers = ledgers(&[(0, "comm", 1, "comm"), (1, "comm", 2, "comm"), (2, "comm", 0, "comm")], 3);
        assert_eq!(found(&ledgers, node(1, "comm")), Culprit::Circle(vec![1, 2, 0]));
    }

    #[test]
    fn an_ended_pe_is_told_apart() {
        let ledgers = ledgers(&[(0, "comm", 1, "comm")], 2);
        ledgers.ledger(1).finish(1);
        assert_eq!(
            found(&ledgers, node(0, "comm")),
            Culprit::Ended { pe: 1, operation: Operation { epoch: 1, ..ASKED } }
        );
    }

    #[test]
    fn a_stream_that_outlives_its_program_is_followed() {
        let ledgers = ledgers(&[(1, "return", 2, "add")], 3);
        ledgers.ledger(1).finish(1);
        assert!(matches!(found(&ledgers, node(1, "return")), Culprit::Runs { pe: 2, .. }));
    }
}

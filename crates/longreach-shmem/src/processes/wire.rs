//! What processes tell each other, as JSON: small, rare, and readable in a trace of system calls.

use crate::blame::{Node, Record};
use crate::failure::{Failure, FailureKind, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Says that a peer speaks this version of the protocol.
pub(super) const PROTOCOL: &str = "longreach processes 1";

/// A message between two PEs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// First word of a PE to PE 0.
    Hello { protocol: String, job: String, world: String, pe: usize, pes: usize, token: Option<String> },
    /// PE 0's answer: there will be no world.
    Refused { reason: String },
    /// PE 0's answer when all are there, with the board's descriptor: the process numbers of all PEs.
    Welcome { pids: Vec<i32> },
    /// From PE 0, with the descriptor of the link to `peer`.
    Link { peer: usize },
    /// A member's part of a collective call, with its segment's descriptor where it has a part.
    Given { key: String, call: String, value: u64, part: Option<WirePart> },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum WirePart {
    Bytes(usize),
    /// Of a GPU's memory.
    BytesOfGpu(usize),
    /// Bytes, not words.
    Words(usize),
}

#[derive(Serialize, Deserialize)]
struct WireOperation {
    name: String,
    stage: Option<usize>,
    epoch: u64,
}

impl From<Operation> for WireOperation {
    fn from(operation: Operation) -> Self {
        Self { name: operation.name.to_owned(), stage: operation.stage, epoch: operation.epoch }
    }
}

impl From<WireOperation> for Operation {
    fn from(wire: WireOperation) -> Self {
        Self { name: interned(&wire.name), stage: wire.stage, epoch: wire.epoch }
    }
}

#[derive(Serialize, Deserialize)]
struct WireFailure {
    kind: String,
    pe: usize,
    operation: WireOperation,
    waited: Duration,
    message: String,
}

/// A failure in at most `room` bytes: a longer message is cut.
pub(super) fn encode_failure(failure: &Failure, room: usize) -> Vec<u8> {
    let mut failure = failure.clone();
    loop {
        let wire = WireFailure {
            kind: failure.kind.name().to_owned(),
            pe: failure.pe,
            operation: failure.operation.into(),
            waited: failure.waited,
            message: failure.message.clone(),
        };
        let bytes = encode(&wire);
        if bytes.len() <= room || failure.message.is_empty() {
            return bytes;
        }
        let half = failure.message.chars().count() / 2;
        failure.message = failure.message.chars().take(half).collect();
    }
}

pub(super) fn decode_failure(bytes: &[u8]) -> Option<Failure> {
    let wire: WireFailure = decode(bytes)?;
    Some(Failure {
        kind: FailureKind::named(&wire.kind)?,
        pe: wire.pe,
        operation: wire.operation.into(),
        waited: wire.waited,
        message: wire.message,
    })
}

#[derive(Serialize, Deserialize)]
struct WireDoing {
    operation: WireOperation,
    since: u64,
}

/// What a PE does since `since`, nanoseconds of the clock that all processes share.
pub(super) fn encode_doing(operation: Operation, since: u64) -> Vec<u8> {
    encode(&WireDoing { operation: operation.into(), since })
}

pub(super) fn decode_doing(bytes: &[u8]) -> Option<(Operation, u64)> {
    let wire: WireDoing = decode(bytes)?;
    Some((wire.operation.into(), wire.since))
}

#[derive(Serialize, Deserialize)]
struct WireWait {
    stream: String,
    pe: usize,
    theirs: String,
    operation: Option<WireOperation>,
}

/// That `stream` waits for what `record` says.
pub(super) fn encode_wait(stream: &str, record: Record) -> Vec<u8> {
    let Record { target, operation } = record;
    let operation = operation.map(WireOperation::from);
    encode(&WireWait { stream: stream.to_owned(), pe: target.pe, theirs: target.stream, operation })
}

pub(super) fn decode_wait(bytes: &[u8]) -> Option<(String, Record)> {
    let wire: WireWait = decode(bytes)?;
    let target = Node { pe: wire.pe, stream: wire.theirs };
    Some((wire.stream, Record { target, operation: wire.operation.map(Operation::from) }))
}

pub(super) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain structures of numbers and strings: there is nothing in them that JSON cannot hold.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn decode<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

/// `name` as names of operations are in this process. There are few different ones, so they are kept for good.
pub(super) fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_the_wire_and_a_long_message_is_cut() {
        let operation = Operation { name: "get", stage: Some(3), epoch: 9 };
        let waited = Duration::from_millis(1500);
        let kind = FailureKind::Stalled;
        let failure = Failure { kind, pe: 2, operation, waited, message: "ä\n\"".repeat(3) };
        assert_eq!(decode_failure(&encode_failure(&failure, 1000)), Some(failure.clone()));
        let long = Failure { message: "ä".repeat(5000), ..failure.clone() };
        let bytes = encode_failure(&long, 1000);
        assert!(bytes.len() <= 1000);
        assert!(decode_failure(&bytes).unwrap().message.starts_with("ää"));
        assert_eq!(decode_failure(b"{}"), None);
    }

    #[test]
    fn names_are_kept_once() {
        let (a, b) = (interned("some name"), interned(&String::from("some name")));
        assert!(std::ptr::eq(a, b));
    }
}

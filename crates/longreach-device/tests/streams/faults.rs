//! Failures: what stops a stream, and where it gets to.

use crate::{label, stream};
use longreach_device::{Error, Pending, Slot, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, thiserror::Error)]
#[error("the disk is full")]
struct DiskFull;

fn fail(stream: &Stream) {
    stream.launch(label(), (), |()| Err(Arc::new(DiskFull))).unwrap();
}

/// Queues work that notes that it ran.
fn ran(stream: &Stream) -> Arc<AtomicBool> {
    let ran = Arc::new(AtomicBool::new(false));
    let note = ran.clone();
    stream
        .launch(label(), (), move |()| {
            note.store(true, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    ran
}

fn is_disk_full(error: &Error) -> bool {
    matches!(error, Error::Fault(fault) if fault.downcast_ref::<DiskFull>().is_some())
}

#[test]
fn work_behind_a_failure_is_skipped_and_the_failure_reported() {
    let stream = stream("failing");
    let before = ran(&stream);
    fail(&stream);
    let behind = ran(&stream);
    let error = stream.synchronize().unwrap_err();
    assert!(is_disk_full(&error), "{error}");
    assert_eq!(error.to_string(), "the disk is full");
    assert!(before.load(Ordering::Relaxed) && !behind.load(Ordering::Relaxed));
    assert!(is_disk_full(&stream.synchronize().unwrap_err()), "it stays failed");
}

#[test]
fn a_failure_follows_events_from_stream_to_stream() {
    let (first, second, third, other) = (stream("first"), stream("second"), stream("third"), stream("other"));
    let early = first.record();
    fail(&first);
    second.wait(label(), &first.record());
    third.wait(label(), &second.record());
    let skipped = ran(&third);
    assert!(is_disk_full(&third.synchronize().unwrap_err()));
    assert!(!skipped.load(Ordering::Relaxed));

    other.wait(label(), &early);
    let works = ran(&other);
    other.synchronize().unwrap();
    assert!(works.load(Ordering::Relaxed), "an event before the failure carries none");
}

#[test]
fn a_value_that_failed_to_be_produced_is_never_read() {
    let (comm, compute) = (stream("comm"), stream("compute"));
    let filling = Slot::new("rows", vec![0u8; 4]).fill(label(), &comm);
    fail(&comm);
    let pending = filling.finish(&comm).unwrap();
    let loan = pending.on(label(), &compute);
    let read = Arc::new(AtomicBool::new(false));
    let note = read.clone();
    compute
        .launch(label(), (&loan,), move |(_,)| {
            note.store(true, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    loan.give_back(&compute).unwrap();
    assert!(is_disk_full(&compute.synchronize().unwrap_err()));
    assert!(!read.load(Ordering::Relaxed));
    assert!(is_disk_full(&pending.read().unwrap_err()));
}

#[test]
fn a_slot_whose_reader_failed_is_not_written() {
    let (comm, compute) = (stream("comm"), stream("compute"));
    let pending = Pending::ready("rows", 1u8);
    let loan = pending.on(label(), &compute);
    fail(&compute);
    loan.give_back(&compute).unwrap();
    let mut filling = pending.reuse().unwrap().fill(label(), &comm);
    comm.launch(label(), (&mut filling,), |(rows,)| {
        *rows = 2;
        Ok(())
    })
    .unwrap();
    assert!(is_disk_full(&filling.finish(&comm).unwrap().read().unwrap_err()));
}

#[test]
fn a_panic_stops_its_stream_and_names_it() {
    let stream = stream("brittle");
    stream.launch(label(), (), |()| panic!("row {} is odd", 3)).unwrap();
    let behind = ran(&stream);
    let Err(Error::Fault(fault)) = stream.synchronize() else {
        panic!("a fault");
    };
    assert_eq!(fault.to_string(), "work on stream `brittle` panicked: row 3 is odd");
    assert!(!behind.load(Ordering::Relaxed));
}

//! What the compiler cannot see: other streams, and loans that never come back.

use crate::{label, stream};
use longreach_device::{Error, Pending, Slot};

#[test]
fn a_loan_is_refused_by_another_stream() {
    let (compute, comm) = (stream("compute"), stream("comm"));
    let pending = Pending::ready("rows", 1);
    let loan = pending.on(label(), &compute);
    let error = comm.launch(label(), (&loan,), |_| Ok(())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`rows` is ordered on stream `compute` and was given to work on stream `comm`: take it with `.on()` for stream `comm`"
    );
    let error = loan.give_back(&comm).unwrap_err();
    assert!(matches!(error, Error::WrongStream { .. }), "{error}");
}

#[test]
fn a_filling_is_refused_by_another_stream() {
    let (compute, comm) = (stream("compute"), stream("comm"));
    let mut filling = Slot::new("rows", 1).fill(label(), &comm);
    let error = compute.launch(label(), (&mut filling,), |_| Ok(())).unwrap_err();
    assert!(
        matches!(&error, Error::WrongStream { theirs, ours, .. } if theirs == "comm" && ours == "compute")
    );
    assert!(matches!(filling.finish(&compute).err(), Some(Error::WrongStream { .. })));
}

#[test]
fn streams_of_one_name_are_told_apart() {
    let (mine, yours) = (stream("compute"), stream("compute"));
    let pending = Pending::ready("rows", 1);
    let loan = pending.on(label(), &mine);
    let error = yours.launch(label(), (&loan,), |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::WrongStream { .. }), "{error}");
}

#[test]
fn a_refused_launch_queues_nothing() {
    let (compute, comm) = (stream("compute"), stream("comm"));
    let mut own = Slot::new("own", 0).fill(label(), &comm);
    let pending = Pending::ready("rows", 1);
    let loan = pending.on(label(), &compute);
    let refused = comm.launch(label(), (&mut own, &loan), |(own, _)| {
        *own = 1;
        Ok(())
    });
    assert!(refused.is_err());
    assert_eq!(*own.finish(&comm).unwrap().read().unwrap(), 0);
    loan.give_back(&compute).unwrap();
}

#[test]
fn a_forgotten_loan_keeps_its_slot() {
    let (comm, compute) = (stream("comm"), stream("compute"));
    let pending = Slot::new("rows", 1).fill(label(), &comm).finish(&comm).unwrap();
    let returned = pending.on(label(), &comm);
    std::mem::forget(pending.on(label(), &compute));
    returned.give_back(&comm).unwrap();
    assert_eq!(
        pending.reuse().err().map(|error| error.to_string()).as_deref(),
        Some(
            "slot `rows`, filled on stream `comm`, cannot be refilled: a loan to stream `compute` was never given back"
        )
    );
}

#[test]
fn a_dropped_loan_keeps_its_slot_too() {
    let compute = stream("compute");
    let pending = Pending::ready("rows", 1);
    drop(pending.on(label(), &compute));
    assert!(matches!(pending.reuse().err(), Some(Error::StillLent { reader, .. }) if reader == "compute"));
}

//! The order of work within a stream and across streams.

use crate::{LONG, label, stream};
use longreach_device::sync::Mutex;
use longreach_device::{Kind, Label, Slot, Stream, Timeline, Watch, unwatched};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

type Log = Arc<Mutex<Vec<usize>>>;

fn note(stream: &Stream, log: &Log, number: usize) {
    let log = log.clone();
    stream
        .launch(label(), (), move |()| {
            log.lock().unwrap().push(number);
            Ok(())
        })
        .unwrap();
}

/// Queues work that ends when something is sent to what is returned.
fn gate(stream: &Stream) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel();
    let wait = move |()| {
        opened.recv().expect("the gate is opened");
        Ok(())
    };
    stream.launch(label(), (), wait).unwrap();
    open
}

fn sleep(stream: &Stream) {
    let nap = |()| {
        thread::sleep(LONG);
        Ok(())
    };
    stream.launch(label(), (), nap).unwrap();
}

#[test]
fn work_of_a_stream_runs_in_the_order_in_which_it_was_queued() {
    let (stream, log) = (stream("one"), Log::default());
    (0..100).for_each(|number| note(&stream, &log, number));
    stream.synchronize().unwrap();
    assert_eq!(*log.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn queuing_waits_for_nothing() {
    let stream = stream("slow");
    let open = gate(&stream);
    let event = stream.record();
    assert!(event.query().is_none());
    open.send(()).unwrap();
    event.synchronize().unwrap();
    assert!(matches!(event.query(), Some(Ok(()))));
}

#[test]
fn an_event_orders_two_streams() {
    let (first, second, log) = (stream("first"), stream("second"), Log::default());
    sleep(&first);
    note(&first, &log, 1);
    second.wait(label(), &first.record());
    note(&second, &log, 2);
    second.synchronize().unwrap();
    assert_eq!(*log.lock().unwrap(), [1, 2]);
}

#[test]
fn a_loan_orders_its_stream_after_the_producer() {
    let (comm, compute) = (stream("comm"), stream("compute"));
    let mut filling = Slot::new("rows", vec![0u32; 4]).fill(label(), &comm);
    sleep(&comm);
    comm.launch(label(), (&mut filling,), |(rows,)| {
        rows.fill(7);
        Ok(())
    })
    .unwrap();
    let pending = filling.finish(&comm).unwrap();
    let loan = pending.on(label(), &compute);
    let mut sum = Slot::new("sum", 0).fill(label(), &compute);
    compute
        .launch(label(), (&loan, &mut sum), |(rows, sum)| {
            *sum = rows.iter().sum();
            Ok(())
        })
        .unwrap();
    loan.give_back(&compute).unwrap();
    assert_eq!(*sum.finish(&compute).unwrap().read().unwrap(), 28);
}

#[test]
fn a_slot_is_refilled_only_after_its_readers() {
    let (comm, readers) = (stream("comm"), [stream("reader"), stream("reader")]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut slot = Slot::new("rows", 0);
    for round in 1..=3 {
        let mut filling = slot.fill(label(), &comm);
        comm.launch(label(), (&mut filling,), move |(value,)| {
            *value = round;
            Ok(())
        })
        .unwrap();
        let pending = filling.finish(&comm).unwrap();
        for reader in &readers {
            let (loan, seen) = (pending.on(label(), reader), seen.clone());
            reader
                .launch(label(), (&loan,), move |(value,)| {
                    thread::sleep(LONG / 5);
                    seen.lock().unwrap().push(*value);
                    Ok(())
                })
                .unwrap();
            loan.give_back(reader).unwrap();
        }
        slot = pending.reuse().unwrap();
    }
    let last = slot.fill(label(), &comm).finish(&comm).unwrap();
    assert_eq!(*last.read().unwrap(), 3);
    assert_eq!(*seen.lock().unwrap(), [1, 1, 2, 2, 3, 3]);
}

#[test]
fn dropping_a_stream_runs_what_is_queued() {
    let ran = Arc::new(AtomicUsize::new(0));
    let stream = stream("dropped");
    sleep(&stream);
    for _ in 0..10 {
        let ran = ran.clone();
        stream
            .launch(label(), (), move |()| {
                ran.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
    }
    drop(stream);
    assert_eq!(ran.load(Ordering::Relaxed), 10);
}

#[test]
fn queued_work_keeps_its_operands_alive() {
    let (comm, seen) = (stream("comm"), Arc::new(AtomicUsize::new(0)));
    let mut filling = Slot::new("rows", vec![1usize; 1000]).fill(label(), &comm);
    sleep(&comm);
    let sum = seen.clone();
    comm.launch(label(), (&mut filling,), move |(rows,)| {
        sum.store(rows.iter().sum(), Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    drop(filling);
    comm.synchronize().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1000);
}

#[test]
fn waits_are_told_and_recorded_and_those_for_oneself_are_none() {
    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);
    impl Watch for Told {
        fn waits(&self, stream: &str, producer: &str) {
            self.0.lock().unwrap().push(format!("{stream} waits for {producer}"));
        }
        fn runs(&self, stream: &str) {
            self.0.lock().unwrap().push(format!("{stream} runs"));
        }
    }
    let (told, timeline) = (Arc::new(Told::default()), Timeline::new(Instant::now()));
    let comm = Stream::new("comm", timeline.clone(), unwatched()).unwrap();
    let compute = Stream::new("compute", timeline.clone(), told.clone()).unwrap();
    let open = gate(&comm);
    compute.wait(Label::new(Kind::Get, 5, 2), &comm.record());
    while told.0.lock().unwrap().is_empty() {
        thread::yield_now();
    }
    open.send(()).unwrap();
    compute.wait(Label::new(Kind::Get, 5, 3), &compute.record());
    compute.synchronize().unwrap();
    assert_eq!(*told.0.lock().unwrap(), ["compute waits for comm", "compute runs"]);

    let spans = timeline.take(5).unwrap();
    assert_eq!(spans.len(), 1);
    assert_eq!((spans[0].label.kind, spans[0].label.stage), (Kind::Wait, 2));
    assert_eq!(&*spans[0].stream, "compute");
    assert!(spans[0].end > spans[0].start);
    assert_eq!(timeline.take(5).unwrap().len(), 0);
    assert_eq!(timeline.take(1).unwrap().len(), 1, "the other call's spans stay");
}

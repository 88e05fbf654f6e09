//! Slots, fillings, pendings and loans: time in the types.
//!
//! A [`Slot`] is memory that streams take turns at. [`Slot::fill`] gives one stream the right to write it, a
//! [`Filling`]; [`Filling::finish`] makes of it a [`Pending`], which cannot be read. [`Pending::on`] orders a stream
//! after the producer and lends the value for work on that stream, a [`Loan`]; [`Loan::give_back`] records when the
//! reader is done. [`Pending::reuse`] takes the `Pending` away, which the borrow checker allows only when no loan
//! lives, and gives the slot back, to be filled after the recorded readers.
//!
//! So neither a read before arrival nor a refill under a reader compiles. A loan that is forgotten instead of given
//! back cannot be seen by the compiler; its slot refuses to be reused.

use crate::error::{Error, Fault};
use crate::event::Event;
use crate::stream::Stream;
use crate::sync::{Arc, Mutex, lock};
use crate::timeline::Label;
use std::cell::UnsafeCell;
use std::marker::PhantomData;

struct Cell<T> {
    name: String,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through `Operand::access` and `Pending::read`. Both are ordered by streams and
// events so that a writer is alone (see `Stream::launch`); readers share it, hence `T: Sync`, and it may be dropped
// by the worker of any stream, hence `T: Send`.
unsafe impl<T: Send + Sync> Sync for Cell<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Cell<T> {}

/// Memory that nobody reads or writes, but for work that a next user will be ordered after.
#[must_use]
pub struct Slot<T> {
    cell: Arc<Cell<T>>,
    after: Vec<Event>,
}

impl<T: Send + Sync + 'static> Slot<T> {
    /// A slot that holds `value`; `name` stands in errors.
    pub fn new(name: impl Into<String>, value: T) -> Self {
        Self { cell: Arc::new(Cell { name: name.into(), value: UnsafeCell::new(value) }), after: Vec::new() }
    }

    /// Orders `stream` after all former users of the slot and gives it the right to write. What the slot held is
    /// still there.
    pub fn fill(self, label: Label, stream: &Stream) -> Filling<T> {
        for event in &self.after {
            #[cfg(shuttle)]
            if crate::sync::omitted::is("readers") {
                continue;
            }
            stream.wait(label.clone(), event);
        }
        Filling { cell: self.cell, stream: stream.name().clone() }
    }
}

/// The right of one stream to write a slot.
#[must_use]
pub struct Filling<T> {
    cell: Arc<Cell<T>>,
    stream: std::sync::Arc<str>,
}

impl<T: Send + Sync + 'static> Filling<T> {
    /// Ends the writing: the value is complete when `stream`, which must be the filling's own, gets here.
    pub fn finish(self, stream: &Stream) -> Result<Pending<T>, Error> {
        same_stream(&self.cell.name, &self.stream, stream.name())?;
        let produced = stream.record();
        Ok(Pending { cell: self.cell, produced, lent: Mutex::new(Lent::default()) })
    }
}

#[derive(Default)]
struct Lent {
    /// Streams of the loans that have not come back.
    out: Vec<std::sync::Arc<str>>,
    /// When the loans that came back will have been used.
    returned: Vec<Event>,
}

/// A value that a stream is still producing. Nothing reads it as such.
#[must_use]
pub struct Pending<T> {
    cell: Arc<Cell<T>>,
    produced: Event,
    lent: Mutex<Lent>,
}

impl<T: Send + Sync + 'static> Pending<T> {
    /// A value that the host has produced already.
    pub fn ready(name: impl Into<String>, value: T) -> Self {
        let produced = Event::completed("host".into());
        Self { cell: Slot::new(name, value).cell, produced, lent: Mutex::new(Lent::default()) }
    }

    /// Orders `stream` after the producer and lends the value for work on it.
    pub fn on(&self, label: Label, stream: &Stream) -> Loan<'_, T> {
        #[cfg(shuttle)]
        let arrived = crate::sync::omitted::is("arrival");
        #[cfg(not(shuttle))]
        let arrived = false;
        if !arrived {
            stream.wait(label, &self.produced);
        }
        lock(&self.lent).out.push(stream.name().clone());
        Loan { pending: self, stream: stream.name().clone() }
    }

    /// The event that completes when the value is there.
    pub fn produced(&self) -> &Event {
        &self.produced
    }

    /// Blocks the calling thread until the value is there, and reads it.
    pub fn read(&self) -> Result<&T, Error> {
        self.read_unless(|| None)
    }

    /// As [`Pending::read`], but ends when `failed` tells of a failure; see [`Event::synchronize_unless`].
    pub fn read_unless(&self, failed: impl Fn() -> Option<Fault>) -> Result<&T, Error> {
        self.produced.synchronize_unless(failed).map_err(Error::Fault)?;
        // SAFETY: the producer is done, and a next writer needs `reuse`, which takes `self` by value and so cannot
        // be called while the reference lives.
        Ok(unsafe { &*self.cell.value.get() })
    }

    /// Takes the value away from its readers: the slot's next user is ordered after the producer and every reader.
    /// Fails when a loan was forgotten.
    pub fn reuse(self) -> Result<Slot<T>, Error> {
        let lent = std::mem::take(&mut *lock(&self.lent));
        if let Some(reader) = lent.out.first() {
            return Err(Error::StillLent {
                slot: self.cell.name.clone(),
                producer: self.produced.stream().to_string(),
                reader: reader.to_string(),
            });
        }
        let mut after = lent.returned;
        after.push(self.produced);
        Ok(Slot { cell: self.cell, after })
    }
}

/// The right of one stream to read a value.
#[must_use]
pub struct Loan<'p, T> {
    pending: &'p Pending<T>,
    stream: std::sync::Arc<str>,
}

impl<T: Send + Sync + 'static> Loan<'_, T> {
    /// Ends the reading: the slot's next writer will be ordered after all that `stream`, which must be the loan's
    /// own, has been given so far.
    pub fn give_back(self, stream: &Stream) -> Result<(), Error> {
        same_stream(&self.pending.cell.name, &self.stream, stream.name())?;
        let mut lent = lock(&self.pending.lent);
        if let Some(place) = lent.out.iter().position(|out| *out == self.stream) {
            lent.out.swap_remove(place);
        }
        lent.returned.push(stream.record());
        Ok(())
    }
}

fn same_stream(operand: &str, theirs: &std::sync::Arc<str>, ours: &std::sync::Arc<str>) -> Result<(), Error> {
    // Names may repeat, streams do not: the same allocation is the same stream.
    if std::sync::Arc::ptr_eq(theirs, ours) {
        return Ok(());
    }
    Err(Error::WrongStream {
        operand: operand.to_owned(),
        theirs: theirs.to_string(),
        ours: ours.to_string(),
    })
}

/// Something that work on a stream may touch: `&Loan` (gives `&T`) or `&mut Filling` (gives `&mut T`).
pub trait Operand: sealed::Sealed {
    /// What the work sees.
    type Access<'a>;
    /// What keeps the memory alive until the work has run.
    type Ticket: Send + 'static;
    /// Fails when the operand belongs to another stream than `stream`.
    fn check(&self, stream: &std::sync::Arc<str>) -> Result<(), Error>;
    /// A ticket for work on the operand's stream.
    fn ticket(&self) -> Self::Ticket;
    /// Opens the memory.
    ///
    /// # Safety
    /// Only from work that was queued on the operand's stream while the operand lived.
    unsafe fn access(ticket: &mut Self::Ticket) -> Self::Access<'_>;
}

/// A tuple of [`Operand`]s.
pub trait Operands {
    /// What the work sees.
    type Access<'a>;
    /// What keeps the memory alive until the work has run.
    type Tickets: Send + 'static;
    /// Fails when an operand belongs to another stream than `stream`.
    fn check(&self, stream: &std::sync::Arc<str>) -> Result<(), Error>;
    /// Tickets for work on the operands' stream.
    fn tickets(&self) -> Self::Tickets;
    /// Opens the memory.
    ///
    /// # Safety
    /// As [`Operand::access`].
    unsafe fn access(tickets: &mut Self::Tickets) -> Self::Access<'_>;
}

mod sealed {
    pub trait Sealed {}
    impl<T> Sealed for &super::Loan<'_, T> {}
    impl<T> Sealed for &mut super::Filling<T> {}
}

/// Keeps a slot's memory alive for queued work.
pub struct Ticket<T, Mode>(Arc<Cell<T>>, PhantomData<fn() -> Mode>);

/// Marks a ticket for reading.
pub struct Read;
/// Marks a ticket for writing.
pub struct Write;

impl<T: Send + Sync + 'static> Operand for &Loan<'_, T> {
    type Access<'a> = &'a T;
    type Ticket = Ticket<T, Read>;
    fn check(&self, stream: &std::sync::Arc<str>) -> Result<(), Error> {
        same_stream(&self.pending.cell.name, &self.stream, stream)
    }
    fn ticket(&self) -> Self::Ticket {
        Ticket(self.pending.cell.clone(), PhantomData)
    }
    unsafe fn access(ticket: &mut Self::Ticket) -> &T {
        // SAFETY: the caller runs on the loan's stream, which is ordered after the producer; a writer comes only
        // after this stream's event in `give_back`.
        unsafe { &*ticket.0.value.get() }
    }
}

impl<T: Send + Sync + 'static> Operand for &mut Filling<T> {
    type Access<'a> = &'a mut T;
    type Ticket = Ticket<T, Write>;
    fn check(&self, stream: &std::sync::Arc<str>) -> Result<(), Error> {
        same_stream(&self.cell.name, &self.stream, stream)
    }
    fn ticket(&self) -> Self::Ticket {
        Ticket(self.cell.clone(), PhantomData)
    }
    unsafe fn access(ticket: &mut Self::Ticket) -> &mut T {
        // SAFETY: the caller runs on the filling's stream, one piece of work after another, ordered after all
        // former users; `&mut Filling` in `launch` excludes a second access by the same piece of work.
        unsafe { &mut *ticket.0.value.get() }
    }
}

macro_rules! operands {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Operand),*> Operands for ($($name,)*) {
            type Access<'a> = ($($name::Access<'a>,)*);
            type Tickets = ($($name::Ticket,)*);
            fn check(&self, stream: &std::sync::Arc<str>) -> Result<(), Error> {
                $(self.$index.check(stream)?;)*
                Ok(())
            }
            fn tickets(&self) -> Self::Tickets {
                ($(self.$index.ticket(),)*)
            }
            unsafe fn access(tickets: &mut Self::Tickets) -> Self::Access<'_> {
                // SAFETY: passed on from the caller.
                ($(unsafe { $name::access(&mut tickets.$index) },)*)
            }
        }
    };
}

impl Operands for () {
    type Access<'a> = ();
    type Tickets = ();
    fn check(&self, _: &std::sync::Arc<str>) -> Result<(), Error> {
        Ok(())
    }
    fn tickets(&self) -> Self::Tickets {}
    unsafe fn access((): &mut Self::Tickets) -> Self::Access<'_> {}
}

operands!(A 0);
operands!(A 0, B 1);
operands!(A 0, B 1, C 2);
operands!(A 0, B 1, C 2, D 3);
operands!(A 0, B 1, C 2, D 3, E 4);
operands!(A 0, B 1, C 2, D 3, E 4, F 5);
operands!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
operands!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

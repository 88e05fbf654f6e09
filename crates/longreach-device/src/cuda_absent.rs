//! What stands for GPUs where they are not supported: the same types, of which there are no values.

use crate::error::Error;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// A GPU; none here.
#[derive(Debug)]
pub enum Gpu {}

impl Gpu {
    /// Fails: GPUs are supported on Linux.
    pub fn count() -> Result<usize, Error> {
        Err(Error::NoDriver)
    }

    /// Fails: GPUs are supported on Linux.
    pub fn open(_ordinal: usize) -> Result<Arc<Self>, Error> {
        Err(Error::NoDriver)
    }

    /// The GPU's number.
    pub fn ordinal(&self) -> usize {
        match *self {}
    }

    pub(crate) fn seconds(&self, _origin: Instant, _event: &Event) -> Result<f64, Error> {
        match *self {}
    }
}

/// A piece of a GPU's memory; none here.
#[derive(Debug)]
pub enum Memory {}

impl Memory {
    /// `bytes` bytes of `gpu`.
    pub fn new(gpu: &Arc<Gpu>, _bytes: usize) -> Result<Self, Error> {
        match **gpu {}
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        match *self {}
    }

    /// `bytes` zeros of `gpu`.
    pub fn zeroed(gpu: &Arc<Gpu>, _bytes: usize) -> Result<Self, Error> {
        match **gpu {}
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        match *self {}
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }
}

/// A point of a stream's time on a GPU; none here.
#[derive(Clone, Debug)]
pub enum Event {}

impl Event {
    pub(crate) fn is_complete(&self) -> bool {
        match *self {}
    }

    pub(crate) fn query(&self) -> Result<bool, Error> {
        match *self {}
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match *self {}
    }

    /// Seconds from this event to `later`.
    pub fn seconds_to(&self, _later: &Event) -> Result<f64, Error> {
        match *self {}
    }
}

/// A stream of a GPU; none here.
#[derive(Debug)]
pub enum Stream {}

impl Stream {
    /// A new stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, Error> {
        match **gpu {}
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        match *self {}
    }

    /// The point behind all that the stream has been given.
    pub fn record(&self) -> Result<Event, Error> {
        match *self {}
    }

    /// Orders what the stream will be given behind `event`.
    pub fn wait(&self, _event: &Event) -> Result<(), Error> {
        match *self {}
    }

    /// Blocks the calling thread until the GPU has done all that the stream has been given.
    pub fn synchronize(&self) -> Result<(), Error> {
        match *self {}
    }

    /// Keeps `what` until the GPU has done the work that is being queued now.
    pub fn keep(&self, _what: impl Any + Send) {
        match *self {}
    }

    /// Gives the stream a copy between addresses of GPUs.
    ///
    /// # Safety
    /// As on Linux.
    pub unsafe fn copy(&self, _to: u64, _from: u64, _bytes: usize) -> Result<(), Error> {
        match *self {}
    }

    /// Gives the stream a copy of `from` into `to`.
    pub fn upload(&self, _from: &[u8], _to: &mut Memory) -> Result<(), Error> {
        match *self {}
    }

    /// Copies `from` into `into`.
    pub fn download(&self, _from: &Memory, _into: &mut [u8]) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn take_kept(&self) -> Vec<Box<dyn Any + Send>> {
        match *self {}
    }
}

pub(crate) mod retired {
    use super::Event;
    use std::any::Any;

    #[derive(Default)]
    pub(crate) struct Retired;

    impl Retired {
        pub(crate) fn add(&mut self, end: Option<&Event>, _thing: impl Any + Send) {
            match end {
                None => {}
                Some(event) => match *event {},
            }
        }
    }
}

//! Symmetric memory: a buffer of the same size on each PE of a team, reached by one-sided transfers.

use crate::copy;
use crate::error::Error;
use crate::region::{Part, Region};
use crate::signals::Signals;
use crate::team::Team;
use longreach_device::{Filling, Label, Loan, Stream};
use std::sync::Arc;

/// A buffer of the same size on each PE of a team. Any PE reads and writes any PE's part with one-sided transfers;
/// what orders them is signals.
///
/// A clone is another handle. Dropping a handle is local: memory goes when no PE has a handle any more.
#[derive(Clone)]
pub struct Symmetric {
    team: Team,
    regions: Arc<Vec<Arc<Region>>>,
    offset: usize,
    len: usize,
}

impl Symmetric {
    pub(crate) fn allocate(team: &Team, bytes: usize) -> Result<Self, Error> {
        let what = "the size of a symmetric allocation";
        let parts =
            team.share("symmetric allocation", what, bytes, bytes, |transport| transport.bytes(bytes))?;
        let regions = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Bytes(region) => Some(region),
                Part::Words(_) => None,
            })
            .collect();
        Ok(Self { team: team.clone(), regions: Arc::new(regions), offset: 0, len: bytes })
    }

    /// Gives the buffer up. Collective over the team: when it returns, no PE reads or writes the buffer any more.
    pub fn free(self) -> Result<(), Error> {
        self.team.barrier()
    }

    /// Bytes on each PE.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes from `offset`, with offsets of its own.
    pub fn view(&self, offset: usize, len: usize) -> Result<Self, Error> {
        self.check_range(offset, len)?;
        Ok(Self { offset: self.offset + offset, len, ..self.clone() })
    }

    /// Copies bytes of team rank `rank`'s part, from `offset`, into `into`, at once on the calling thread.
    pub fn read(&self, rank: usize, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let start = self.start(rank, offset, into.len())?;
        // SAFETY: `start` checked the range; the region lives while `self` does and is reached by `copy` only.
        unsafe { copy::read(start, into) };
        self.team.tick();
        Ok(())
    }

    /// Copies `from` into team rank `rank`'s part at `offset`, at once on the calling thread.
    pub fn write(&self, rank: usize, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.team.check()?;
        let start = self.start(rank, offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { copy::write(start, from) };
        self.team.tick();
        Ok(())
    }

    /// Queues a get on `stream`: `into` is filled from its beginning with as many bytes as it has.
    pub fn get(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        offset: usize,
        into: &mut Filling<Vec<u8>>,
    ) -> Result<(), Error> {
        self.start(rank, offset, 0)?;
        let buffer = self.clone();
        stream.launch(label, (into,), move |(into,)| {
            buffer.read(rank, offset, into).map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues a put of all of `from` on `stream`.
    pub fn put(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        offset: usize,
        from: &Loan<'_, Vec<u8>>,
    ) -> Result<(), Error> {
        self.start(rank, offset, 0)?;
        let buffer = self.clone();
        stream.launch(label, (from,), move |(from,)| {
            buffer.write(rank, offset, from).map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues a put of all of `from` on `stream`, and behind it the signal: who waits for word `index` of
    /// `signals` to reach `value` finds the bytes there.
    #[allow(clippy::too_many_arguments)] // the two ends of a transfer and of its signal
    pub fn put_signal(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        offset: usize,
        from: &Loan<'_, Vec<u8>>,
        signals: &Signals,
        index: usize,
        value: u64,
    ) -> Result<(), Error> {
        self.put(stream, label.clone(), rank, offset, from)?;
        signals.set_on(stream, label, rank, index, value)
    }

    fn start(&self, rank: usize, offset: usize, len: usize) -> Result<*mut u8, Error> {
        self.check_range(offset, len)?;
        let size = self.regions.len();
        let region = self.regions.get(rank).ok_or(Error::NoSuchRank { rank, size })?;
        // SAFETY: view and range lie inside the region, so the sum stays inside its allocation.
        Ok(unsafe { region.start().as_ptr().add(self.offset + offset) })
    }

    fn check_range(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfRange { offset, len, size: self.len }),
        }
    }
}

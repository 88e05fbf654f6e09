//! Symmetric memory: a buffer of the same size on each PE of a team, reached by one-sided transfers.

use crate::copy;
use crate::error::Error;
use crate::region::{Part, Region};
use crate::signals::Signals;
use crate::team::Team;
use longreach_device::cuda::{self, Gpu};
use longreach_device::{Bytes, BytesMut, Filling, Label, Loan, Parts, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Zeros that are copied at a time.
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
const ZEROS: usize = 64 << 20;

/// Which way bytes go.
#[derive(Clone, Copy, Debug)]
enum Way {
    Get,
    Put,
}

/// Bytes of a transfer that lie side by side at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which part of what is filled or sent.
    pub part: usize,
    /// First byte of that part.
    pub here: usize,
    /// First byte of the symmetric buffer.
    pub there: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Piece {
    /// The first `len` bytes of the only part, at `there` in the symmetric buffer.
    pub const fn first(len: usize, there: usize) -> Self {
        Self { part: 0, here: 0, there, len }
    }
}

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
        let missing = |rank, limit| Error::OutOfMemory { rank, bytes, limit };
        let parts =
            team.share("symmetric allocation", what, bytes, missing, |transport| transport.bytes(bytes))?;
        Ok(Self::new(team, bytes, parts))
    }

    pub(crate) fn allocate_on(team: &Team, gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, Error> {
        #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
        if let Some(regions) = team.regions_of_nvshmem(gpu, bytes)? {
            return Ok(Self { team: team.clone(), regions: Arc::new(regions), offset: 0, len: bytes });
        }
        let what = "the size of a symmetric allocation";
        let missing = |rank, _| Error::OutOfGpuMemory { rank, bytes };
        let parts = team.share("symmetric allocation on GPUs", what, bytes, missing, |transport| {
            transport.bytes_of_gpu(gpu, bytes)
        })?;
        Ok(Self::new(team, bytes, parts))
    }

    /// Makes memory of `gpu` zero, at once.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn zero(gpu: &Arc<Gpu>, address: u64, bytes: usize) -> Result<(), Error> {
        let stream = cuda::Stream::new(gpu)?;
        let zeros = cuda::Memory::zeroed(gpu, bytes.min(ZEROS))?;
        for at in (0..bytes).step_by(ZEROS) {
            // SAFETY: the memory has as many bytes, and nobody else knows of it yet; the copy is waited for.
            unsafe { stream.copy(address + at as u64, zeros.address(), ZEROS.min(bytes - at))? };
        }
        Ok(stream.synchronize()?)
    }

    fn new(team: &Team, len: usize, parts: Vec<Part>) -> Self {
        let regions = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Bytes(region) => Some(region),
                Part::Words(_) => None,
            })
            .collect();
        Self { team: team.clone(), regions: Arc::new(regions), offset: 0, len }
    }

    /// Gives the buffer up. Collective over the team: when it returns, no PE reads or writes the buffer any more.
    pub fn free(self) -> Result<(), Error> {
        self.team.barrier()?;
        #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
        if let Some(region) = self.regions.first()
            && let Some((nvshmem, _)) = region.nvshmem()
        {
            return nvshmem.free(region.start().as_ptr() as u64, &|| self.team.check().err());
        }
        Ok(())
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

    /// Where this PE's own part begins in this process, for libraries that work on memory by its address. What they read
    /// and write there, signals must order with the transfers of all PEs; a handle must be kept meanwhile.
    pub fn own_address(&self) -> Result<usize, Error> {
        self.of_host()?;
        Ok(self.start(self.team.rank(), 0, 0)?.addr())
    }

    /// Copies bytes of team rank `rank`'s part, from `offset`, into `into`, at once on the calling thread.
    pub fn read(&self, rank: usize, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.of_host()?;
        let start = self.start(rank, offset, into.len())?;
        // SAFETY: `start` checked the range; the region lives while `self` does and is reached by `copy` only.
        unsafe { copy::read(start, into) };
        self.team.tick();
        Ok(())
    }

    /// Copies `from` into team rank `rank`'s part at `offset`, at once on the calling thread.
    pub fn write(&self, rank: usize, offset: usize, from: &[u8]) -> Result<(), Error> {
        self.team.check()?;
        self.of_host()?;
        let start = self.start(rank, offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { copy::write(start, from) };
        self.team.tick();
        Ok(())
    }

    /// Queues a get of `pieces` of team rank `rank`'s part on `stream`.
    pub fn get<T: Parts>(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        pieces: Vec<Piece>,
        into: &mut Filling<T>,
    ) -> Result<(), Error> {
        self.check_pieces(rank, &pieces)?;
        let (buffer, cuda) = (self.clone(), stream.cuda().cloned());
        stream.launch(label, (into,), move |(into,)| {
            buffer.get_now(cuda.as_deref(), rank, &pieces, into).map_err(Error::into_fault)
        })?;
        Ok(())
    }

    fn get_now<T: Parts>(
        &self,
        cuda: Option<&cuda::Stream>,
        rank: usize,
        pieces: &[Piece],
        into: &mut T,
    ) -> Result<(), Error> {
        for &Piece { part, here, there, len } in pieces {
            match (into.part_mut(part), cuda) {
                (Some(BytesMut::Host(bytes)), None) => {
                    let range = within(here, len, bytes.len())?;
                    self.read(rank, there, &mut bytes[range])?;
                }
                (Some(BytesMut::Gpu(memory)), Some(cuda)) => {
                    within(here, len, memory.len())?;
                    let from = self.of_gpu(rank, there, len)?;
                    self.moved(cuda, rank, Way::Get, memory.address() + here as u64, from, len)?;
                    self.team.tick();
                }
                _ => {
                    return Err(Error::Place {
                        what: "a get into memory of another place than its stream's",
                    });
                }
            }
        }
        if let Some(cuda) = cuda {
            cuda.keep(self.regions.clone());
        }
        Ok(())
    }

    /// Queues a put of `pieces` into team rank `rank`'s part on `stream`.
    pub fn put<T: Parts>(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        pieces: Vec<Piece>,
        from: &Loan<'_, T>,
    ) -> Result<(), Error> {
        self.check_pieces(rank, &pieces)?;
        let (buffer, cuda) = (self.clone(), stream.cuda().cloned());
        stream.launch(label, (from,), move |(from,)| {
            buffer.put_now(cuda.as_deref(), rank, &pieces, from).map_err(Error::into_fault)
        })?;
        Ok(())
    }

    fn put_now<T: Parts>(
        &self,
        cuda: Option<&cuda::Stream>,
        rank: usize,
        pieces: &[Piece],
        from: &T,
    ) -> Result<(), Error> {
        for &Piece { part, here, there, len } in pieces {
            match (from.part(part), cuda) {
                (Some(Bytes::Host(bytes)), None) => {
                    self.write(rank, there, &bytes[within(here, len, bytes.len())?])?;
                }
                (Some(Bytes::Gpu(memory)), Some(cuda)) => {
                    self.team.check()?;
                    within(here, len, memory.len())?;
                    let to = self.of_gpu(rank, there, len)?;
                    self.moved(cuda, rank, Way::Put, to, memory.address() + here as u64, len)?;
                    self.team.tick();
                }
                _ => {
                    return Err(Error::Place {
                        what: "a put from memory of another place than its stream's",
                    });
                }
            }
        }
        if let Some(cuda) = cuda {
            cuda.keep(self.regions.clone());
        }
        Ok(())
    }

    /// Queues a put of `pieces` on `stream`, and behind it the signal: who waits for word `index` of `signals` to reach
    /// `value` finds the bytes there.
    #[allow(clippy::too_many_arguments)] // the two ends of a transfer and of its signal
    pub fn put_signal<T: Parts>(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        pieces: Vec<Piece>,
        from: &Loan<'_, T>,
        signals: &Signals,
        index: usize,
        value: u64,
    ) -> Result<(), Error> {
        self.put(stream, label.clone(), rank, pieces, from)?;
        signals.set_on(stream, label, &[rank], index, value)
    }

    /// Gives `stream` a copy between memory of its GPU and team rank `rank`'s part, both checked.
    fn moved(
        &self,
        stream: &cuda::Stream,
        rank: usize,
        way: Way,
        to: u64,
        from: u64,
        len: usize,
    ) -> Result<(), Error> {
        #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
        if let Some((nvshmem, pe)) = self.regions[rank].nvshmem()
            && pe != nvshmem.pe()
        {
            return match way {
                _ if len == 0 => Ok(()),
                Way::Get => nvshmem.get(stream, to, from, len, pe),
                Way::Put => nvshmem.put(stream, to, from, len, pe),
            };
        }
        let (Way::Get | Way::Put) = way;
        let _ = rank;
        // SAFETY: both ranges have been checked; the stream is ordered with all other users, as whoever has the filling or
        // the loan is, and as signals say of the symmetric memory, which is kept.
        Ok(unsafe { stream.copy(to, from, len) }?)
    }

    /// This PE's own part from `offset` on, `len` bytes of a GPU, for work that is being queued on `stream`, which keeps
    /// them. Others may write there: signals say when not.
    pub fn own_on_gpu(&self, stream: &cuda::Stream, offset: usize, len: usize) -> Result<u64, Error> {
        let address = self.of_gpu(self.team.rank(), offset, len)?;
        stream.keep(self.regions.clone());
        Ok(address)
    }

    fn check_pieces(&self, rank: usize, pieces: &[Piece]) -> Result<(), Error> {
        self.start(rank, 0, 0)?;
        pieces.iter().try_for_each(|piece| self.check_range(piece.there, piece.len))
    }

    fn of_host(&self) -> Result<(), Error> {
        match self.regions.first().is_some_and(|region| region.is_on_gpu()) {
            false => Ok(()),
            true => Err(Error::Place { what: "memory of a GPU, for the host to read or write" }),
        }
    }

    fn of_gpu(&self, rank: usize, offset: usize, len: usize) -> Result<u64, Error> {
        match self.of_host() {
            Err(_) => Ok(self.start(rank, offset, len)? as u64),
            Ok(()) => Err(Error::Place { what: "memory of the host, for a stream of a GPU" }),
        }
    }

    fn start(&self, rank: usize, offset: usize, len: usize) -> Result<*mut u8, Error> {
        self.check_range(offset, len)?;
        let size = self.regions.len();
        let region = self.regions.get(rank).ok_or(Error::NoSuchRank { rank, size })?;
        // View and range lie inside the region, so the sum stays inside its allocation.
        Ok(region.start().as_ptr().wrapping_add(self.offset + offset))
    }

    fn check_range(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfRange { offset, len, size: self.len }),
        }
    }
}

fn within(offset: usize, len: usize, size: usize) -> Result<Range<usize>, Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}

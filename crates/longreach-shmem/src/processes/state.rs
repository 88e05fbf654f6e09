//! What a process knows of its world, shared by its threads and the watcher.

use super::board::{Board, FAILURE_TEXT};
use super::ledger::BoardLedger;
use super::link::Link;
use super::segment::Segment;
use super::wire::{Message, WirePart, decode_failure, encode_failure, interned};
use super::words::SharedWords;
use crate::failure::{Failure, FailureKind, Operation};
use crate::gather::{Collective, Given};
use crate::region::{Part, Region, Words};
use crate::transport::{Ledger, Transport};
use longreach_device::cuda::{Gpu, SharedMemory};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub(super) struct State {
    pub(super) own: usize,
    board: Arc<Board>,
    ledgers: Vec<BoardLedger>,
    pub(super) links: Vec<Option<Link>>,
    /// Readable when the watcher is to end.
    pub(super) stop: OwnedFd,
    /// What members of collective calls have given, by call and member.
    given: Mutex<HashMap<(String, usize), Came>>,
    peers: Mutex<Peers>,
    /// The world's failure, once this process has read it.
    failure: OnceLock<Arc<Failure>>,
    /// The GPU that this PE's memory is on, once it has some.
    gpu: OnceLock<Arc<Gpu>>,
    /// Held by the thread that reports a failure: a PE has room for one.
    reporting: Mutex<()>,
}

/// What came of a member.
struct Came {
    call: &'static str,
    value: u64,
    part: CamePart,
}

enum CamePart {
    None,
    /// This PE's own.
    Own(Part),
    /// Another one's, not mapped yet.
    File(WirePart, OwnedFd),
}

#[derive(Default)]
struct Peers {
    /// The run that this process's program is in, or was in last.
    run: u64,
    gone: Vec<usize>,
}

impl State {
    pub(super) fn new(own: usize, board: Board, links: Vec<Option<Link>>, stop: OwnedFd) -> Self {
        let board = Arc::new(board);
        let ledgers = (0..links.len()).map(|pe| BoardLedger::new(board.clone(), pe)).collect();
        Self {
            own,
            board,
            ledgers,
            links,
            stop,
            given: Mutex::default(),
            peers: Mutex::default(),
            failure: OnceLock::new(),
            gpu: OnceLock::new(),
            reporting: Mutex::default(),
        }
    }

    /// Takes in what `pe` gave in a collective call.
    pub(super) fn heard(
        &self,
        pe: usize,
        key: String,
        call: &str,
        value: u64,
        part: Option<(WirePart, OwnedFd)>,
    ) {
        let part = part.map_or(CamePart::None, |(part, file)| CamePart::File(part, file));
        locked(&self.given).insert((key, pe), Came { call: interned(call), value, part });
        self.ring(self.own);
    }

    /// Notes that `pe`'s process is gone. In the middle of a run that is the world's failure.
    pub(super) fn lost(&self, pe: usize) {
        let mut peers = locked(&self.peers);
        peers.gone.push(pe);
        let ended = self.ledgers[pe].finished() >= peers.run;
        drop(peers);
        if !ended {
            self.fail(self.death(pe));
        }
        (0..self.ledgers.len()).for_each(|pe| self.ring(pe));
    }

    fn death(&self, pe: usize) -> Failure {
        let doing = self.ledgers[pe].doing();
        let (operation, waited) = doing.unwrap_or((Operation::outside("its program"), Duration::ZERO));
        Failure { kind: FailureKind::Died, pe, operation, waited, message: String::new() }
    }

    /// Gives a member's part to another one. A member that is gone gets nothing, and is noticed by the watcher.
    fn tell(&self, pe: usize, message: &Message, part: Option<&Part>) {
        let Some(link) = &self.links[pe] else { return };
        let region = part.and_then(region_of);
        let file = region.and_then(|region| {
            let of_gpu = || region.owner::<SharedMemory>().map(SharedMemory::file);
            region.owner::<Segment>().map(Segment::file).or_else(of_gpu)
        });
        while let Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) = link.send(message, file) {
            if self.failure().is_some() {
                return;
            }
            let mut fds = [PollFd::from_borrowed_fd(link.socket(), PollFlags::OUT)];
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // However it ends, the message is tried again.
            let _ = poll(&mut fds, Some(&timeout));
        }
    }

    fn part(&self, came: CamePart) -> Option<Part> {
        match came {
            CamePart::None => None,
            CamePart::Own(part) => Some(part),
            CamePart::File(WirePart::Bytes(len), file) => {
                Some(bytes_part(Segment::open(file, len).ok()?, len))
            }
            CamePart::File(WirePart::BytesOfGpu(len), file) => {
                Some(gpu_part(SharedMemory::open(self.gpu.get()?, file, len).ok()?))
            }
            CamePart::File(WirePart::Words(len), file) => {
                Some(words_part(Segment::open(file, len).ok()?, len))
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn region(segment: Segment, len: usize) -> Region {
    // SAFETY: the segment keeps the mapping, of at least `len` bytes and the rest of their page; all processes reach it
    // through regions.
    unsafe { Region::new(segment.start(), len, segment) }
}

fn bytes_part(segment: Segment, len: usize) -> Part {
    Part::Bytes(Arc::new(region(segment, len)))
}

fn words_part(segment: Segment, len: usize) -> Part {
    Part::Words(Arc::new(Words::Shared(SharedWords::new(region(segment, len)))))
}

fn gpu_part(memory: SharedMemory) -> Part {
    // SAFETY: the region's owner is the memory.
    Part::Bytes(Arc::new(unsafe { Region::on_gpu(memory.address(), memory.len(), memory) }))
}

fn region_of(part: &Part) -> Option<&Region> {
    match part {
        Part::Bytes(region) => Some(region),
        Part::Words(words) => match &**words {
            Words::Shared(words) => Some(words.region()),
            Words::Own(..) => None,
        },
    }
}

impl Transport for State {
    fn own(&self) -> Option<usize> {
        Some(self.own)
    }

    fn ledger(&self, pe: usize) -> &dyn Ledger {
        &self.ledgers[pe]
    }

    fn ring(&self, pe: usize) {
        self.board.bell(pe).ring();
    }

    fn sleep(&self, pe: usize, timeout: Duration, ready: &dyn Fn() -> bool) -> bool {
        self.board.bell(pe).wait(timeout, ready)
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        if let Some(failure) = self.failure.get() {
            return Some(failure.clone());
        }
        // Acquire: pairs with `fail`, so that the text is there.
        let first = self.board.first().load(Ordering::Acquire).checked_sub(1)?;
        let reporter = usize::try_from(first).ok().filter(|&pe| pe < self.ledgers.len())?;
        let failure = decode_failure(&self.board.read_failure(reporter)).unwrap_or_else(|| Failure {
            message: format!("PE {reporter} reported a failure that cannot be read"),
            ..self.death(reporter)
        });
        Some(self.failure.get_or_init(|| Arc::new(failure)).clone())
    }

    fn fail(&self, failure: Failure) -> Arc<Failure> {
        let _reporting = locked(&self.reporting);
        if let Some(failure) = self.failure() {
            return failure;
        }
        // Nobody reads this PE's text yet, since the first failure is not its own.
        self.board.write_failure(self.own, &encode_failure(&failure, FAILURE_TEXT));
        // AcqRel: pairs with `failure`. The first one stays.
        let own = self.own as u64 + 1;
        let _ = self.board.first().compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        self.failure().unwrap_or_else(|| Arc::new(failure))
    }

    fn begin(&self, run: u64) -> Result<(), Failure> {
        let mut peers = locked(&self.peers);
        peers.run = run;
        match peers.gone.first() {
            None => Ok(()),
            Some(&pe) => Err(Failure {
                message: "its process has ended before this run; a world needs all its PEs".to_owned(),
                ..self.death(pe)
            }),
        }
    }

    fn bytes(&self, len: usize) -> Option<Part> {
        Some(bytes_part(Segment::new(len).ok()?, len))
    }

    fn bytes_of_gpu(&self, gpu: &Arc<Gpu>, len: usize) -> Option<Part> {
        // Others' memory is mapped for the GPU that this PE's own is on, of which there is one.
        if self.gpu.get_or_init(|| gpu.clone()).ordinal() != gpu.ordinal() {
            return None;
        }
        Some(gpu_part(SharedMemory::new(gpu, len).ok()?))
    }

    fn words(&self, count: usize) -> Option<Part> {
        let len = SharedWords::bytes(count)?;
        Some(words_part(Segment::new(len).ok()?, len))
    }

    fn give(&self, collective: &Collective, given: Given) {
        let Given { call, value, part } = given;
        let wire = part.as_ref().and_then(|part| {
            let len = region_of(part)?.len();
            Some(match part {
                Part::Bytes(region) if region.is_on_gpu() => WirePart::BytesOfGpu(len),
                Part::Bytes(_) => WirePart::Bytes(len),
                Part::Words(_) => WirePart::Words(len),
            })
        });
        let key = collective.key.to_owned();
        let message = Message::Given { key: key.clone(), call: call.to_owned(), value, part: wire };
        for &member in collective.members.iter().filter(|&&member| member != self.own) {
            self.tell(member, &message, part.as_ref());
        }
        let part = part.map_or(CamePart::None, CamePart::Own);
        locked(&self.given).insert((key, self.own), Came { call, value, part });
    }

    fn has_given(&self, collective: &Collective, rank: usize) -> bool {
        locked(&self.given).contains_key(&(collective.key.to_owned(), collective.members[rank]))
    }

    fn take(&self, collective: &Collective) -> Vec<Given> {
        let mut came = Vec::with_capacity(collective.members.len());
        {
            let mut given = locked(&self.given);
            let key = |&member: &usize| (collective.key.to_owned(), member);
            came.extend(collective.members.iter().filter_map(|member| given.remove(&key(member))));
        }
        came.into_iter()
            .map(|Came { call, value, part }| Given { call, value, part: self.part(part) })
            .collect()
    }
}

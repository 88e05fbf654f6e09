//! NVSHMEM as what moves bytes between GPUs: its symmetric memory, its gets and puts on streams.
//!
//! The world stays one of processes: who is where, signals, deadlines and failures are the `processes` transport's, and
//! NVSHMEM knows nothing of them. The library is looked for when a program first asks for it.

mod layout;
mod library;
mod owner;

pub use library::{Library, Version};
pub(crate) use owner::Owner;

use crate::error::Error;
use layout::{InitAttributes, UniqueId};
use longreach_device::cuda::{Gpu, Stream};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How PEs share GPUs, as NVSHMEM tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each PE has a GPU of its own.
    Exclusive,
    /// PEs share a GPU without MPS: NVSHMEM's own waits and teams do not work, and longreach uses none.
    Limited,
    /// PEs share a GPU under MPS, each with its share of it.
    Full,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Exclusive => "a GPU a PE",
            Mode::Limited => "GPUs shared without MPS",
            Mode::Full => "GPUs shared under MPS",
        })
    }
}

/// What names a world of NVSHMEM to its PEs.
pub(crate) const ID: usize = size_of::<UniqueId>();

/// Says whether waiting has become pointless.
pub(crate) type Failed<'f> = &'f dyn Fn() -> Option<Error>;

/// NVSHMEM, started in this process.
pub(crate) struct Nvshmem {
    owner: Owner,
    gpu: Arc<Gpu>,
    pe: usize,
    pes: usize,
    mode: Mode,
    /// Whether the program had started it before, and ends it.
    attached: bool,
    /// Bytes by address.
    allocations: Mutex<BTreeMap<u64, usize>>,
}

impl Nvshmem {
    /// A new world's name, for one PE to give to all.
    pub(crate) fn unique_id(owner: &Owner, failed: Failed) -> Result<[u8; ID], Error> {
        owner.call("nvshmemx_get_uniqueid", failed, |library| {
            let mut id = UniqueId::new();
            // SAFETY: the id is written to where it is asked for, and has the size that its version says.
            let code = unsafe { (library.symbols()?.get_uniqueid)(&mut id) };
            library.succeeded("nvshmemx_get_uniqueid", code)?;
            Ok(id.bytes())
        })?
    }

    /// Starts NVSHMEM as PE `pe` of `pes` on `gpu`, or joins what the program has started. Collective over the PEs.
    pub(crate) fn start(
        owner: Owner,
        gpu: &Arc<Gpu>,
        [pe, pes]: [usize; 2],
        id: [u8; ID],
        failed: Failed,
    ) -> Result<Self, Error> {
        let on_gpu = gpu.clone();
        let (status, attached) = owner.call("nvshmemx_hostlib_init_attr", failed, move |library| {
            // NVSHMEM takes the GPU of the thread's primary context.
            on_gpu.make_current()?;
            let symbols = library.symbols()?;
            // SAFETY: takes nothing.
            let before = unsafe { (symbols.init_status)() };
            if before < INITIALISED {
                // NVSHMEM keeps the address of the id for its life.
                let id: &'static UniqueId = Box::leak(Box::new(UniqueId::from_bytes(id)));
                let mut attributes = InitAttributes::new();
                // SAFETY: the arguments have the layout that their versions say; the id lives for ever.
                let code =
                    unsafe { (symbols.set_attr_uniqueid_args)(pe as i32, pes as i32, id, &mut attributes) };
                library.succeeded("nvshmemx_set_attr_uniqueid_args", code)?;
                // SAFETY: as above.
                let code = unsafe { (symbols.hostlib_init_attr)(BY_UNIQUE_ID, &mut attributes) };
                library.succeeded("nvshmemx_hostlib_init_attr", code)?;
            }
            // SAFETY: these take nothing.
            let (status, own, all) =
                unsafe { ((symbols.init_status)(), (symbols.my_pe)(), (symbols.n_pes)()) };
            if status >= INITIALISED && [own, all] != [pe as i32, pes as i32] {
                return Err(Error::Nvshmem(format!(
                    "this program has started NVSHMEM as PE {own} of {all}, and the world has it as PE {pe} of {pes}: give both the same"
                )));
            }
            Ok((status, before >= INITIALISED))
        })??;
        let mode = match status {
            2 => Mode::Exclusive,
            3 => Mode::Limited,
            4 => Mode::Full,
            _ => {
                return Err(Error::Nvshmem(format!(
                    "NVSHMEM has started with status {status}, and 2 or more is needed: it has no GPU, or they do not reach each other; NVSHMEM_DEBUG=INFO tells why"
                )));
            }
        };
        Ok(Self { owner, gpu: gpu.clone(), pe, pes, mode, attached, allocations: Mutex::default() })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Whether the GPU has memory for `bytes` bytes more. The library ends the process where it has not.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        // The heap grows in steps.
        const STEP: usize = 512 << 20;
        let needed = bytes.checked_next_multiple_of(STEP).and_then(|bytes| bytes.checked_add(STEP));
        let free = self.gpu.memory().map_or(0, |(free, _)| free);
        needed.is_some_and(|needed| needed <= free)
    }

    /// `bytes` bytes on each PE, at least one. Collective over the PEs, all of which have memory for it.
    pub(crate) fn allocate(&self, bytes: usize, failed: Failed) -> Result<u64, Error> {
        let bytes = bytes.max(1);
        let address = self.owner.call("nvshmem_malloc", failed, move |library| {
            // SAFETY: all PEs make this call, in the same order.
            Ok::<u64, Error>(unsafe { (library.symbols()?.malloc)(bytes) } as u64)
        })??;
        if address == 0 {
            return Err(Error::Nvshmem(format!("nvshmem_malloc gave nothing for {bytes} bytes")));
        }
        self.allocations().insert(address, bytes);
        Ok(address)
    }

    /// Gives memory back that [`Nvshmem::allocate`] gave. Collective over the PEs, none of which uses it any more.
    pub(crate) fn free(&self, address: u64, failed: Failed) -> Result<(), Error> {
        if self.allocations().remove(&address).is_none() {
            return Ok(());
        }
        self.owner.call("nvshmem_free", failed, move |library| {
            // SAFETY: it is memory of this heap, freed once, by all PEs.
            unsafe { (library.symbols()?.free)(address as *mut _) };
            Ok(())
        })?
    }

    /// Queues a get of `bytes` bytes at `from`, an address of this PE's own part, of PE `pe` into `to` on `stream`.
    pub(crate) fn get(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        bytes: usize,
        pe: usize,
    ) -> Result<(), Error> {
        self.transfer("nvshmemx_getmem_on_stream", stream, [to, from], from, bytes, pe)
    }

    /// Queues a put of `bytes` bytes at `from` to `to`, an address of this PE's own part, of PE `pe` on `stream`, and
    /// behind it the wait until it is there.
    pub(crate) fn put(
        &self,
        stream: &Stream,
        to: u64,
        from: u64,
        bytes: usize,
        pe: usize,
    ) -> Result<(), Error> {
        self.transfer("nvshmemx_putmem_on_stream", stream, [to, from], to, bytes, pe)
    }

    fn transfer(
        &self,
        call: &'static str,
        stream: &Stream,
        [to, from]: [u64; 2],
        symmetric: u64,
        bytes: usize,
        pe: usize,
    ) -> Result<(), Error> {
        // The library ends the process where an argument is wrong.
        let within = self.allocations().range(..=symmetric).next_back().is_some_and(|(&first, &len)| {
            (symmetric - first).checked_add(bytes as u64).is_some_and(|end| end <= len as u64)
        });
        if !within || pe >= self.pes || bytes == 0 {
            return Err(Error::Nvshmem(format!(
                "a transfer of {bytes} bytes at {symmetric:#x} with PE {pe} of {}: it is not within this heap",
                self.pes
            )));
        }
        let (raw, is_put) = (stream.raw().cu_stream() as usize, call == "nvshmemx_putmem_on_stream");
        self.owner.call(call, &|| None, move |library| {
            let symbols = library.symbols()?;
            let (to, from, pe, stream) = (to as *mut _, from as *const _, pe as i32, raw as *mut _);
            // SAFETY: the symmetric end has been checked, the other is the caller's own, valid memory; the stream is alive,
            // as the caller waits for this.
            unsafe {
                if is_put {
                    (symbols.putmem_on_stream)(to, from, bytes, pe, stream);
                    (symbols.quiet_on_stream)(stream);
                } else {
                    (symbols.getmem_on_stream)(to, from, bytes, pe, stream);
                }
            }
            Ok(())
        })?
    }

    /// Ends NVSHMEM, after an orderly end of all that used it. Collective over the PEs.
    pub(crate) fn stop(&self, failed: Failed) -> Result<(), Error> {
        if self.attached {
            return Ok(());
        }
        self.owner.call("nvshmemx_hostlib_finalize", failed, |library| {
            // SAFETY: it was initialised here; all PEs make this call.
            unsafe { (library.symbols()?.hostlib_finalize)() };
            Ok(())
        })?
    }

    /// This PE.
    pub(crate) fn pe(&self) -> usize {
        self.pe
    }

    fn allocations(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, usize>> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of the library's states, the first in which it has a GPU.
const INITIALISED: i32 = 2;
/// How PEs find each other: by an id.
const BY_UNIQUE_ID: u32 = 8;

//! Memory of a PE that other PEs reach.

use crate::error::Error;
use crate::marks::Marks;
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
use crate::nvshmem::Nvshmem;
use crate::words::Word;
use longreach_device::cuda;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a PE allocates in a collective call, and others reach.
#[derive(Clone)]
pub(crate) enum Part {
    /// Bytes, reached by transfers.
    Bytes(Arc<Region>),
    /// Signal words.
    Words(Arc<Words>),
}

/// Bytes at a fixed place, of the host or of a GPU.
pub(crate) struct Region {
    start: NonNull<u8>,
    on_gpu: bool,
    /// Reached by NVSHMEM, with whom it is: the address is that of this process's own part then.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    nvshmem: Option<(Arc<Nvshmem>, usize)>,
    #[cfg_attr(
        not(all(target_os = "linux", not(any(loom, shuttle)))),
        expect(dead_code, reason = "for processes")
    )]
    len: usize,
    /// Gives the memory back when it is dropped.
    #[cfg_attr(
        not(all(target_os = "linux", not(any(loom, shuttle)))),
        expect(dead_code, reason = "for its Drop")
    )]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is reached through `copy`, as atomics, or by a GPU's copies only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// `start` must be valid for reads and writes of `len` bytes, and of the rest of their last word, for as long as
    /// `owner` lives, whatever thread `owner` is dropped on; and everybody must touch those bytes either through `copy`
    /// or as atomics of one size, only.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, owner: impl Any + Send + Sync) -> Self {
        Self {
            start,
            on_gpu: false,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            nvshmem: None,
            len,
            owner: Box::new(owner),
        }
    }

    /// # Safety
    /// `address` must be that of `len` bytes of a GPU's memory for as long as `owner` lives.
    pub(crate) unsafe fn on_gpu(address: u64, len: usize, owner: impl Any + Send + Sync) -> Self {
        // Never looked at: the memory has a length of its own where there is none.
        let start = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
        Self {
            start,
            on_gpu: true,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            nvshmem: None,
            len,
            owner: Box::new(owner),
        }
    }

    /// The part of PE `pe` of an allocation of NVSHMEM that has `len` bytes and this process's own part at `address`.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn of_nvshmem(nvshmem: &Arc<Nvshmem>, pe: usize, address: u64, len: usize) -> Self {
        let start = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
        Self { start, on_gpu: true, nvshmem: Some((nvshmem.clone(), pe)), len, owner: Box::new(()) }
    }

    /// NVSHMEM and the PE whose part it is, where NVSHMEM reaches it.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn nvshmem(&self) -> Option<(&Arc<Nvshmem>, usize)> {
        self.nvshmem.as_ref().map(|(nvshmem, pe)| (nvshmem, *pe))
    }

    /// Whether the bytes are a GPU's, which the host cannot reach.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.on_gpu
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What the memory belongs to, if it is an `O`.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn owner<O: Any>(&self) -> Option<&O> {
        self.owner.downcast_ref()
    }
}

/// Signal words of one PE.
pub(crate) enum Words {
    /// In this process's own memory.
    Own(Vec<Word>, Marks),
    /// In memory that processes share.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    Shared(crate::processes::SharedWords),
}

impl std::ops::Deref for Words {
    type Target = [Word];

    fn deref(&self) -> &[Word] {
        match self {
            Words::Own(words, _) => words,
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            Words::Shared(words) => words.signals(),
        }
    }
}

impl Words {
    /// Notes that word `index` of each of `all`, which is about to be raised to `value`, stands for what `stream` has been
    /// given so far.
    pub(crate) fn mark<'w>(
        all: impl Iterator<Item = &'w Words>,
        index: usize,
        value: u64,
        stream: &cuda::Stream,
    ) -> Result<(), Error> {
        let mut recorded: Option<cuda::Event> = None;
        for words in all {
            match words {
                Words::Own(_, marks) => {
                    let event = match &recorded {
                        Some(event) => event.clone(),
                        None => stream.record()?,
                    };
                    marks.put(index, value, recorded.insert(event).clone());
                }
                #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
                Words::Shared(words) => words.mark(index, stream)?,
            }
        }
        Ok(())
    }

    /// Orders `stream` behind what word `index`, which holds `value` or more, stands for.
    pub(crate) fn order(&self, index: usize, value: u64, stream: &cuda::Stream) -> Result<(), Error> {
        match self {
            Words::Own(_, marks) => match marks.take(index, value) {
                Some(event) => Ok(stream.wait(&event)?),
                None => Ok(()),
            },
            #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
            Words::Shared(words) => words.order(index, stream),
        }
    }
}

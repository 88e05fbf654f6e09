//! The transport of PEs that are threads of one process.

mod gatherings;
mod ledger;

use crate::failure::Failure;
use crate::gather::{Collective, Given};
use crate::marks::Marks;
use crate::region::{Part, Region, Words};
use crate::transport::{Ledger, Transport};
use crate::words::{Bell, Word};
use gatherings::Gatherings;
use ledger::OwnLedger;
use longreach_device::cuda::{Gpu, Memory};
use longreach_device::sync::{AtomicBool, Mutex, Ordering, lock};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Symmetric buffers start at multiples of this many bytes.
const ALIGNMENT: usize = 64;

/// What the PEs of a world share, in ordinary memory.
pub(crate) struct Threads {
    ledgers: Vec<OwnLedger>,
    bells: Vec<Bell>,
    gatherings: Gatherings,
    failed: AtomicBool,
    failure: Mutex<Option<Arc<Failure>>>,
}

impl Threads {
    pub(crate) fn new(pes: usize) -> Self {
        Self {
            ledgers: (0..pes).map(|_| OwnLedger::default()).collect(),
            bells: (0..pes).map(|_| Bell::new()).collect(),
            gatherings: Gatherings::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }
}

impl Transport for Threads {
    fn own(&self) -> Option<usize> {
        None
    }

    fn ledger(&self, pe: usize) -> &dyn Ledger {
        &self.ledgers[pe]
    }

    fn ring(&self, pe: usize) {
        self.bells[pe].ring();
    }

    fn sleep(&self, pe: usize, timeout: Duration, ready: &dyn Fn() -> bool) -> bool {
        self.bells[pe].wait(timeout, ready)
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        // Must not order PEs among each other, which would hide from ThreadSanitizer what signals fail to order.
        // Acquire: pairs with `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.failure).clone()
    }

    fn fail(&self, failure: Failure) -> Arc<Failure> {
        let failure = lock(&self.failure).get_or_insert_with(|| Arc::new(failure)).clone();
        // Release: pairs with `failure`. Set after the failure itself.
        self.failed.store(true, Ordering::Release);
        failure
    }

    fn begin(&self, _run: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn bytes(&self, len: usize) -> Option<Part> {
        // An empty buffer is an ordinary one; the allocator wants at least a byte.
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).ok()?.pad_to_align();
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: the memory, padded to whole words, lives until `Allocated` is dropped, and whoever gets it from the
        // region uses `copy`.
        let region = unsafe { Region::new(start, len, Allocated { start, layout }) };
        Some(Part::Bytes(Arc::new(region)))
    }

    fn bytes_of_gpu(&self, gpu: &Arc<Gpu>, len: usize) -> Option<Part> {
        let memory = Memory::zeroed(gpu, len).ok()?;
        // SAFETY: the region's owner is the memory.
        Some(Part::Bytes(Arc::new(unsafe { Region::on_gpu(memory.address(), len, memory) })))
    }

    fn words(&self, count: usize) -> Option<Part> {
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.extend((0..count).map(|_| Word::new()));
        Some(Part::Words(Arc::new(Words::Own(words, Marks::new(count)))))
    }

    fn give(&self, collective: &Collective, given: Given) {
        self.gatherings.give(collective, given);
        collective.members.iter().for_each(|&member| self.ring(member));
    }

    fn has_given(&self, collective: &Collective, rank: usize) -> bool {
        self.gatherings.has_given(collective, rank)
    }

    fn take(&self, collective: &Collective) -> Vec<Given> {
        self.gatherings.take(collective)
    }
}

/// Memory from the allocator.
struct Allocated {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it only gives the memory back, which any thread may do.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the last handle of all PEs is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

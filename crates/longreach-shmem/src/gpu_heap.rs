//! NVSHMEM for a world of processes: how it is started, and how it gives memory.

use crate::error::Error;
use crate::nvshmem::{ID, Library, Mode, Nvshmem, Owner};
use crate::region::Region;
use crate::symmetric::{Piece, Symmetric};
use crate::team::Team;
use longreach_device::cuda::{Gpu, Memory};
use longreach_device::{Kind, Label, Pending, Slot, Timeline};
use std::sync::Arc;

/// What NVSHMEM must find in the environment, before the program starts.
const SETTINGS: [&str; 3] = ["NVSHMEM_DISABLE_NVLS", "NVSHMEM_REMOTE_TRANSPORT", "NVSHMEM_DISABLE_NCCL"];

impl Team {
    /// Starts NVSHMEM for the world, this PE on `gpu`, and tries transfers between all PEs: symmetric memory of GPUs is
    /// NVSHMEM's from now on, and its gets and puts move bytes. What the program has started already is joined.
    ///
    /// Collective over the world, whose PEs are processes; the team must have all of them, in order. Fails, on every PE,
    /// where the library is absent or refuses, and where a transfer does not bring what was sent.
    pub fn start_nvshmem(&self, gpu: &Arc<Gpu>) -> Result<Mode, Error> {
        if let Some(nvshmem) = self.shared().nvshmem.get() {
            return Ok(nvshmem.mode());
        }
        self.is_whole("NVSHMEM")?;
        let started = self.start_nvshmem_here(gpu).and_then(|nvshmem| {
            let mode = nvshmem.mode();
            let _ = self.shared().nvshmem.set(Arc::new(nvshmem));
            self.try_transfers(gpu)?;
            Ok(mode)
        });
        // The others would wait for this one in vain: all get the same failure.
        started.map_err(|error| match error {
            Error::Failed(_) => error,
            error => self.fail(&error.to_string()),
        })
    }

    /// Ends NVSHMEM, after an orderly end of all that used it; memory that was not freed goes with it. Collective over the
    /// world. Nothing where the program had started it.
    pub fn stop_nvshmem(&self) -> Result<(), Error> {
        let Some(nvshmem) = self.shared().nvshmem.get() else { return Ok(()) };
        self.barrier()?;
        nvshmem.stop(&|| self.check().err())
    }

    fn is_whole(&self, what: &str) -> Result<(), Error> {
        let (pes, own) = (self.shared().pes, self.shared().transport.own());
        if own.is_some() && self.ranks().iter().copied().eq(0..pes) {
            return Ok(());
        }
        Err(Error::Nvshmem(format!(
            "{what} for team {:?} of a world of {pes} PEs: it is for worlds whose PEs are processes, and for all of them in order",
            self.ranks()
        )))
    }

    fn start_nvshmem_here(&self, gpu: &Arc<Gpu>) -> Result<Nvshmem, Error> {
        if let Some(missing) = SETTINGS.iter().find(|name| std::env::var_os(name).is_none()) {
            return Err(Error::Nvshmem(format!(
                "{missing} is not set: NVSHMEM reads it when it starts; set NVSHMEM_DISABLE_NVLS=1, NVSHMEM_REMOTE_TRANSPORT=none and NVSHMEM_DISABLE_NCCL=1 before the program starts, as `longreach launch` does"
            )));
        }
        let failed = || self.check().err();
        let owner = Owner::start(Library::open()?, self.shared().deadline())?;
        // Symmetric memory of the host carries the world's name to all.
        let board = self.allocate(ID)?;
        if self.rank() == 0 {
            board.write(0, 0, &Nvshmem::unique_id(&owner, &failed)?)?;
        }
        self.barrier()?;
        let mut id = [0; ID];
        board.read(0, 0, &mut id)?;
        board.free()?;
        Nvshmem::start(owner, gpu, [self.rank(), self.size()], id, &failed)
    }

    /// Each PE puts into every other one's memory, and gets from it, and compares.
    fn try_transfers(&self, gpu: &Arc<Gpu>) -> Result<(), Error> {
        const BYTES: usize = 4096;
        let (me, size) = (self.rank(), self.size());
        let (buffer, signals) = (self.allocate_on(gpu, BYTES * (size + 1))?, self.signals(size)?);
        let stream = self.stream_on("trial", &Timeline::new(self.shared().origin), gpu)?;
        let label = || Label::new(Kind::Put, 0, 0);
        let pattern = |from: usize, to: usize| -> Vec<u8> {
            (0..BYTES).map(|i| (i * 7 + from * 31 + to * 101 + 1) as u8).collect()
        };
        let upload = |bytes: Vec<u8>| -> Result<Pending<Memory>, Error> {
            let mut filling = Slot::new("trial", Memory::new(gpu, BYTES)?).fill(label(), &stream);
            let cuda = stream.cuda().cloned();
            stream.launch(label(), (&mut filling,), move |(memory,)| match cuda {
                Some(cuda) => cuda.upload(&bytes, memory).map_err(|error| error.into_fault()),
                None => Ok(()),
            })?;
            Ok(filling.finish(&stream)?)
        };
        for peer in 0..size {
            let sent = upload(pattern(me, peer))?;
            let loan = sent.on(label(), &stream);
            let piece = vec![Piece::first(BYTES, BYTES * me)];
            buffer.put_signal(&stream, label(), peer, piece, &loan, &signals, me, 1)?;
            loan.give_back(&stream)?;
        }
        for peer in 0..size {
            let operation = crate::failure::Operation::outside("trial transfers");
            signals.wait_on(&stream, label(), peer, 1, peer, "trial", operation)?;
        }
        stream.synchronize()?;
        self.barrier()?;
        for peer in 0..size {
            for from in 0..size {
                let mut filling = Slot::new("trial", Memory::new(gpu, BYTES)?).fill(label(), &stream);
                buffer.get(&stream, label(), peer, vec![Piece::first(BYTES, BYTES * from)], &mut filling)?;
                let got = filling.finish(&stream)?;
                let mut bytes = vec![0; BYTES];
                longreach_device::cuda::Stream::new(gpu)?.download(got.read()?, &mut bytes)?;
                if bytes != pattern(from, peer) {
                    return Err(Error::Nvshmem(format!(
                        "a trial transfer brought other bytes than PE {from} had put into PE {peer}'s memory, as PE {me} got them: this machine's GPUs or libraries cannot be trusted"
                    )));
                }
            }
        }
        buffer.free()
    }

    /// Memory of NVSHMEM on each PE, as this one reaches it; none where NVSHMEM has not been started.
    pub(crate) fn regions_of_nvshmem(
        &self,
        gpu: &Arc<Gpu>,
        bytes: usize,
    ) -> Result<Option<Vec<Arc<Region>>>, Error> {
        let Some(nvshmem) = self.shared().nvshmem.get() else { return Ok(None) };
        self.is_whole("memory of NVSHMEM")?;
        if nvshmem.gpu().ordinal() != gpu.ordinal() {
            return Err(Error::Nvshmem(format!(
                "memory of GPU {} was asked for and NVSHMEM works on GPU {}: use that one",
                gpu.ordinal(),
                nvshmem.gpu().ordinal()
            )));
        }
        // The library ends the process where memory is short: all PEs look first, and tell.
        let given = self.gather("symmetric allocation of NVSHMEM", bytes as u64, None)?;
        crate::team::agreed("the size of a symmetric allocation", &given)?;
        let short = self.gather("symmetric allocation of NVSHMEM", u64::from(!nvshmem.fits(bytes)), None)?;
        if let Some(rank) = short.iter().position(|given| given.value > 0) {
            return Err(Error::OutOfGpuMemory { rank, bytes });
        }
        let address = nvshmem.allocate(bytes, &|| self.check().err())?;
        Symmetric::zero(gpu, address, bytes)?;
        // Nobody gets what another one has not zeroed yet.
        self.barrier()?;
        let region = |pe| Arc::new(Region::of_nvshmem(nvshmem, pe, address, bytes));
        Ok(Some((0..self.size()).map(region).collect()))
    }
}

//! How a PE's symmetric memory is divided. The same on all PEs.

use crate::array::Place;
use crate::error::Error;
use crate::options::Options;
use longreach_shmem::{Description, Signals, Symmetric, Team};

/// Bytes of a publish slot's header: epoch, digest, length and text of the call's description.
pub(super) const HEADER: usize = 4096;
const TEXT: usize = 24;
const ALIGNMENT: usize = 64;

/// The epochs that signals carry, by purpose; word `purpose * PEs + writer` on each PE.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// Writer = owner: its K and V of that epoch can be read.
    Published,
    /// Writer = reader: it has read what it reads of the epoch.
    Consumed,
    /// Writer = owner: the contribution of that tag may be written.
    Granted,
    /// Writer = contributor: the contribution of that tag has been written.
    Arrived,
}

#[derive(Clone)]
pub(super) struct Heap {
    pub(super) signals: Signals,
    /// Two headers, on the host, where PEs compare them.
    headers: Symmetric,
    /// Two publish slots, then the return slots, where the engine works.
    pub(super) buffer: Symmetric,
    pes: usize,
    publish: usize,
    contribution: usize,
    pub(super) return_slots: usize,
}

impl Heap {
    /// Collective over the team.
    pub(super) fn new(team: &Team, place: &Place, options: &Options) -> Result<Self, Error> {
        let round = |bytes: usize| bytes.checked_next_multiple_of(ALIGNMENT);
        let publish = round(options.heap.publish);
        let contribution = round(options.heap.contribution);
        let return_slots = options.return_slots.max(1);
        let sizes = publish.zip(contribution);
        let total = sizes.and_then(|(publish, contribution)| {
            publish.checked_mul(2)?.checked_add(contribution.checked_mul(return_slots)?)
        });
        let (Some((publish, contribution)), Some(total)) = (sizes, total) else {
            return Err(team
                .refuse(&format!("a heap of {:?} does not fit into 64 bits", options.heap))
                .into());
        };
        let buffer = match place {
            Place::Host => team.allocate(total)?,
            Place::Gpu(gpu) => team.allocate_on(gpu, total)?,
        };
        let headers = team.allocate(2 * HEADER)?;
        let signals = team.signals(4 * team.size())?;
        Ok(Self { signals, headers, buffer, pes: team.size(), publish, contribution, return_slots })
    }

    /// Collective over the team.
    pub(super) fn free(self) -> Result<(), Error> {
        self.headers.free()?;
        Ok(self.buffer.free()?)
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.len() + self.headers.len()
    }

    pub(super) fn publish_capacity(&self) -> usize {
        self.publish
    }

    pub(super) fn contribution_capacity(&self) -> usize {
        self.contribution
    }

    pub(super) fn word(&self, purpose: Purpose, writer: usize) -> usize {
        purpose as usize * self.pes + writer
    }

    /// Writes the header of this PE's publication of `epoch`.
    pub(super) fn write_header(&self, me: usize, epoch: u64, description: &Description) -> Result<(), Error> {
        let mut text = description.encode();
        text.truncate(HEADER - TEXT);
        let mut header = Vec::with_capacity(TEXT + text.len());
        for word in [epoch, description.digest(), text.len() as u64] {
            header.extend(word.to_ne_bytes());
        }
        header.extend(text);
        Ok(self.headers.write(me, header_of(epoch), &header)?)
    }

    /// The epoch and digest of team rank `owner`'s publication in the slot of `epoch`.
    pub(super) fn read_digest(&self, owner: usize, epoch: u64) -> Result<(u64, u64), Error> {
        let mut words = [0u8; 16];
        self.headers.read(owner, header_of(epoch), &mut words)?;
        Ok((word_at(&words, 0), word_at(&words, 8)))
    }

    /// The description in that publication.
    pub(super) fn read_description(&self, owner: usize, epoch: u64) -> Result<Description, Error> {
        let mut header = vec![0u8; HEADER];
        self.headers.read(owner, header_of(epoch), &mut header)?;
        let len = usize::try_from(word_at(&header, 16)).unwrap_or(0).min(HEADER - TEXT);
        Ok(Description::decode(&header[TEXT..TEXT + len]))
    }

    /// The first byte of the rows that are published under `epoch`.
    pub(super) fn publication(&self, epoch: u64) -> usize {
        if epoch.is_multiple_of(2) { 0 } else { self.publish }
    }

    /// The first byte of the return slot of contribution `n`.
    pub(super) fn return_slot(&self, n: usize) -> usize {
        2 * self.publish + n % self.return_slots * self.contribution
    }
}

fn header_of(epoch: u64) -> usize {
    if epoch.is_multiple_of(2) { 0 } else { HEADER }
}

fn word_at(bytes: &[u8], place: usize) -> u64 {
    bytes[place..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

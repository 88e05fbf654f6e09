//! How a PE's symmetric memory is divided: two publish slots, then the return slots. The same on all PEs.

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
    buffer: Symmetric,
    pes: usize,
    publish: usize,
    contribution: usize,
    pub(super) return_slots: usize,
}

impl Heap {
    /// Collective over the team.
    pub(super) fn new(team: &Team, options: &Options) -> Result<Self, Error> {
        let round = |bytes: usize| bytes.checked_next_multiple_of(ALIGNMENT);
        let publish = round(options.heap.publish).and_then(|bytes| bytes.checked_add(HEADER));
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
        let buffer = team.allocate(total)?;
        let signals = team.signals(4 * team.size())?;
        Ok(Self { signals, buffer, pes: team.size(), publish, contribution, return_slots })
    }

    /// Collective over the team.
    pub(super) fn free(self) -> Result<(), Error> {
        Ok(self.buffer.free()?)
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn publish_capacity(&self) -> usize {
        self.publish - HEADER
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
        Ok(self.buffer.write(me, self.publication(epoch), &header)?)
    }

    /// The epoch and digest of team rank `owner`'s publication in the slot of `epoch`.
    pub(super) fn read_digest(&self, owner: usize, epoch: u64) -> Result<(u64, u64), Error> {
        let mut words = [0u8; 16];
        self.buffer.read(owner, self.publication(epoch), &mut words)?;
        Ok((word_at(&words, 0), word_at(&words, 8)))
    }

    /// The description in that publication.
    pub(super) fn read_description(&self, owner: usize, epoch: u64) -> Result<Description, Error> {
        let mut header = vec![0u8; HEADER];
        self.buffer.read(owner, self.publication(epoch), &mut header)?;
        let len = usize::try_from(word_at(&header, 16)).unwrap_or(0).min(HEADER - TEXT);
        Ok(Description::decode(&header[TEXT..TEXT + len]))
    }

    /// Writes published rows of this PE, `offset` bytes behind the header.
    pub(super) fn write_rows(&self, me: usize, epoch: u64, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.buffer.write(me, self.publication(epoch) + HEADER + offset, bytes)?)
    }

    /// Reads published rows of team rank `owner`.
    pub(super) fn read_rows(
        &self,
        owner: usize,
        epoch: u64,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), Error> {
        Ok(self.buffer.read(owner, self.publication(epoch) + HEADER + offset, into)?)
    }

    /// Writes a contribution into a return slot of team rank `owner`.
    pub(super) fn write_contribution(
        &self,
        owner: usize,
        slot: usize,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        Ok(self.buffer.write(owner, self.return_slot(slot) + offset, bytes)?)
    }

    /// Reads a contribution from one of this PE's return slots.
    pub(super) fn read_contribution(
        &self,
        me: usize,
        slot: usize,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), Error> {
        Ok(self.buffer.read(me, self.return_slot(slot) + offset, into)?)
    }

    fn publication(&self, epoch: u64) -> usize {
        if epoch.is_multiple_of(2) { 0 } else { self.publish }
    }

    fn return_slot(&self, slot: usize) -> usize {
        2 * self.publish + slot * self.contribution
    }
}

fn word_at(bytes: &[u8], place: usize) -> u64 {
    bytes[place..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

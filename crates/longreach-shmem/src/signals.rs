//! Signal words on each PE of a team.

use crate::error::Error;
use crate::failure::Operation;
use crate::region::{Part, Words};
use crate::team::Team;
use crate::words::Word;
use longreach_device::{Label, Stream};
use std::sync::Arc;

/// `count` words on each PE of a team, set and added to by any PE, waited for by their owner. They only grow.
#[derive(Clone)]
pub struct Signals {
    team: Team,
    words: Arc<Vec<Arc<Words>>>,
}

impl Signals {
    pub(crate) fn allocate(team: &Team, count: usize) -> Result<Self, Error> {
        let bytes = count.saturating_mul(size_of::<Word>());
        let what = "the number of signals";
        let missing = |rank, limit| Error::OutOfMemory { rank, bytes, limit };
        let parts =
            team.share("signal allocation", what, count, missing, |transport| transport.words(count))?;
        let words = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Words(words) => Some(words),
                Part::Bytes(_) => None,
            })
            .collect();
        Ok(Self { team: team.clone(), words: Arc::new(words) })
    }

    /// The value of word `index` on this PE; data written before the signal was given is visible afterwards.
    pub fn load(&self, index: usize) -> Result<u64, Error> {
        Ok(self.word(self.team.rank(), index)?.load())
    }

    /// Raises word `index` of team rank `rank` to `value` at once, from the calling thread. A word that holds more
    /// keeps it: of sets that race the largest counts, whatever order they arrive in.
    pub fn set(&self, rank: usize, index: usize, value: u64) -> Result<(), Error> {
        self.team.check()?;
        self.word(rank, index)?.set(value);
        self.team.ring(rank);
        Ok(())
    }

    /// Adds to word `index` of team rank `rank` at once, from the calling thread.
    pub fn add(&self, rank: usize, index: usize, value: u64) -> Result<(), Error> {
        self.team.check()?;
        self.word(rank, index)?.add(value);
        self.team.ring(rank);
        Ok(())
    }

    /// Blocks the calling thread, which works for this PE's stream of role `role`, until word `index` of this PE
    /// holds at least `value`. `peer`'s stream of role `theirs` is who would raise it.
    pub fn wait(
        &self,
        index: usize,
        value: u64,
        role: &str,
        peer: usize,
        theirs: &str,
        operation: Operation,
    ) -> Result<(), Error> {
        let word = self.word(self.team.rank(), index)?;
        self.team.wait_until(role, peer, theirs, operation, || word.load() >= value)
    }

    /// Queues a wait on `stream`: work queued behind it runs when word `index` of this PE holds at least `value`.
    /// `peer`'s stream of role `theirs` is who would raise it.
    #[allow(clippy::too_many_arguments)] // what is waited for, and who is to blame for it
    pub fn wait_on(
        &self,
        stream: &Stream,
        label: Label,
        index: usize,
        value: u64,
        peer: usize,
        theirs: &str,
        operation: Operation,
    ) -> Result<(), Error> {
        self.word(self.team.rank(), index)?;
        self.team.world_rank(peer)?;
        let (signals, ours, theirs) = (self.clone(), stream.name().clone(), theirs.to_owned());
        let cuda = stream.cuda().cloned();
        stream.launch(label.of_host(), (), move |()| {
            let wait = || {
                let rank = signals.team.rank();
                let word = signals.word(rank, index)?;
                #[cfg(shuttle)]
                if longreach_device::sync::omitted::is(&format!(
                    "{} on {}",
                    operation.name,
                    ours.split('@').next().unwrap_or_default()
                )) {
                    return Ok(());
                }
                signals.team.wait_as(&ours, peer, &theirs, operation, || word.load() >= value)?;
                match cuda {
                    Some(cuda) => signals.words[rank].order(index, value, &cuda),
                    None => Ok(()),
                }
            };
            wait().map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues [`Signals::set`] of word `index` of each of `ranks` on `stream`. Of a GPU's stream, who waits with a stream of
    /// a GPU is ordered behind what this one was given before.
    pub fn set_on(
        &self,
        stream: &Stream,
        label: Label,
        ranks: &[usize],
        index: usize,
        value: u64,
    ) -> Result<(), Error> {
        ranks.iter().try_for_each(|&rank| self.word(rank, index).map(drop))?;
        let (signals, cuda, ranks) = (self.clone(), stream.cuda().cloned(), ranks.to_vec());
        stream.launch(label.of_host(), (), move |()| {
            let set = || {
                if let Some(cuda) = cuda {
                    let words = ranks.iter().map(|&rank| &*signals.words[rank]);
                    Words::mark(words, index, value, &cuda)?;
                }
                ranks.iter().try_for_each(|&rank| signals.set(rank, index, value))
            };
            set().map_err(Error::into_fault)
        })?;
        Ok(())
    }

    /// Queues [`Signals::add`] on `stream`.
    pub fn add_on(
        &self,
        stream: &Stream,
        label: Label,
        rank: usize,
        index: usize,
        value: u64,
    ) -> Result<(), Error> {
        self.word(rank, index)?;
        let signals = self.clone();
        stream.launch(label, (), move |()| signals.add(rank, index, value).map_err(Error::into_fault))?;
        Ok(())
    }

    fn word(&self, rank: usize, index: usize) -> Result<&Word, Error> {
        let size = self.words.len();
        let words = self.words.get(rank).ok_or(Error::NoSuchRank { rank, size })?;
        words.get(index).ok_or(Error::OutOfRange { offset: index, len: 1, size: words.len() })
    }
}

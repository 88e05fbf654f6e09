//! Signal words in memory that processes share, and the events of GPUs that go with them.

use crate::error::Error;
use crate::region::Region;
use crate::words::Word;
use longreach_device::cuda::{EventHandle, SharedEvent, Stream};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words of a PE, as one process sees them. Behind the words stand the handles of events: who raises a word with a GPU's
/// stream has one event for it, which stands for the last value that was signalled or a later one.
pub(crate) struct SharedWords {
    region: Region,
    count: usize,
    /// The events of words that this process raises or waits for.
    events: Mutex<HashMap<usize, SharedEvent>>,
}

/// Words that an event's handle takes, and whether it is there.
const HANDLE: usize = size_of::<EventHandle>() / size_of::<Word>();
const EVENT: usize = HANDLE + 1;

impl SharedWords {
    /// Bytes that `count` words and their events take.
    pub(super) fn bytes(count: usize) -> Option<usize> {
        count.checked_mul(size_of::<Word>() * (1 + EVENT))
    }

    /// The words in `region`, which begins at a page's start and has [`SharedWords::bytes`] of them.
    pub(super) fn new(region: Region) -> Self {
        let count = region.len() / (size_of::<Word>() * (1 + EVENT));
        Self { region, count, events: Mutex::default() }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// The words that are signals.
    pub(crate) fn signals(&self) -> &[Word] {
        &self.all()[..self.count]
    }

    fn all(&self) -> &[Word] {
        // SAFETY: a word is a 64-bit atomic and nothing else (`repr(transparent)`), all bit patterns are valid, the
        // region is mapped at a page's start and all processes touch it as words only.
        unsafe {
            std::slice::from_raw_parts(
                self.region.start().as_ptr().cast(),
                self.region.len() / size_of::<Word>(),
            )
        }
    }

    /// Of the word's event: whether its handle is there, and the handle.
    fn event(&self, index: usize) -> (&Word, &[Word]) {
        let words = &self.all()[self.count + index * EVENT..][..EVENT];
        (&words[0], &words[1..])
    }

    /// Makes the word's event stand for what `stream` has been given so far; to be called before the word is raised.
    pub(crate) fn mark(&self, index: usize, stream: &Stream) -> Result<(), Error> {
        let mut events = self.events();
        if let Some(event) = events.get(&index) {
            return Ok(event.record(stream)?);
        }
        let event = SharedEvent::new(stream.gpu())?;
        event.record(stream)?;
        let (there, handle) = self.event(index);
        // A word has one writer, and its handle is written once: nobody reads it before `there` says so.
        let bytes = event.handle()?;
        for (word, bytes) in handle.iter().zip(bytes.as_chunks().0) {
            word.set(u64::from_ne_bytes(*bytes));
        }
        there.set(1);
        events.insert(index, event);
        Ok(())
    }

    /// Orders `stream` behind the word's event, where the word was raised with one.
    pub(crate) fn order(&self, index: usize, stream: &Stream) -> Result<(), Error> {
        let mut events = self.events();
        if let Some(event) = events.get(&index) {
            return Ok(event.order(stream)?);
        }
        let (there, words) = self.event(index);
        if there.load() == 0 {
            return Ok(());
        }
        let mut handle: EventHandle = [0; 64];
        for (bytes, word) in handle.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.load().to_ne_bytes();
        }
        let event = SharedEvent::open(stream.gpu(), &handle)?;
        event.order(stream)?;
        events.insert(index, event);
        Ok(())
    }

    fn events(&self) -> MutexGuard<'_, HashMap<usize, SharedEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;

    #[test]
    fn words_and_the_handles_behind_them_do_not_overlap() {
        let len = SharedWords::bytes(3).unwrap();
        let mut memory = vec![0u64; len / 8];
        let start = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the memory outlives the words, which alone touch it.
        let words = SharedWords::new(unsafe { Region::new(start, len, ()) });
        assert_eq!((words.signals().len(), words.all().len()), (3, 3 * 10));
        words.signals().iter().for_each(|word| assert_eq!(word.set(7), 0));
        for index in 0..3 {
            let (there, handle) = words.event(index);
            assert_eq!((there.set(1), handle.len()), (0, 8), "event {index} was touched");
            handle.iter().for_each(|word| assert_eq!(word.set(u64::MAX), 0));
        }
        assert!(words.signals().iter().all(|word| word.load() == 7));
    }
}

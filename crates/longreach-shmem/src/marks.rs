//! What signals of GPUs' streams carry beside their value.
//!
//! A stream's worker raises a word when it has given the GPU all that the signal stands for, not when the GPU has done it.
//! So the signal carries a point of the GPU's time, and who waits for the word orders its own stream behind that point.
//! No GPU ever waits for memory: a point that is waited for has been recorded, and what comes before it has been queued.

use longreach_device::cuda;
use longreach_device::sync::{Mutex, lock};
use std::collections::VecDeque;

/// Points for the words of one PE, by word.
#[derive(Debug)]
pub(crate) struct Marks(Vec<Mutex<VecDeque<(u64, cuda::Event)>>>);

impl Marks {
    pub(crate) fn new(words: usize) -> Self {
        Self((0..words).map(|_| Mutex::default()).collect())
    }

    /// Notes `event` for `value` of word `index`; to be called before the word is raised.
    pub(crate) fn put(&self, index: usize, value: u64, event: cuda::Event) {
        lock(&self.0[index]).push_back((value, event));
    }

    /// The first point for `value` or more, and forgets those before: a word's values are waited for in order.
    pub(crate) fn take(&self, index: usize, value: u64) -> Option<cuda::Event> {
        let mut marks = lock(&self.0[index]);
        while marks.front().is_some_and(|(noted, _)| *noted < value) {
            marks.pop_front();
        }
        marks.front().map(|(_, event)| event.clone())
    }
}

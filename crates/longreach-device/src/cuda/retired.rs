//! What queued work used, kept until the GPU has done the work.

use super::Event;
use std::any::Any;
use std::collections::VecDeque;

/// Things of one stream, in the order of its work.
#[derive(Default)]
pub(crate) struct Retired {
    things: VecDeque<(Option<Event>, Box<dyn Any + Send>)>,
}

impl Retired {
    /// Keeps `thing` until the GPU has come to `end`; for ever where there is no such point, since then nobody knows what
    /// the GPU still does. Drops what has become free.
    pub(crate) fn add(&mut self, end: Option<&Event>, thing: impl Any + Send) {
        while self.things.front().is_some_and(|(end, _)| end.as_ref().is_some_and(Event::is_complete)) {
            self.things.pop_front();
        }
        self.things.push_back((end.cloned(), Box::new(thing)));
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        for (end, thing) in self.things.drain(..) {
            match end.map(|end| end.synchronize()) {
                Some(Ok(())) => drop(thing),
                // The GPU may still use it.
                Some(Err(_)) | None => std::mem::forget(thing),
            }
        }
    }
}

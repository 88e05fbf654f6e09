//! This process's part of a world, from the rendezvous until it is dropped.

use super::clock;
use super::rendezvous::{Met, meet};
use super::state::State;
use super::watcher::watch;
use crate::environment::Rendezvous;
use crate::error::Error;
use crate::transport::Transport;
use rustix::event::{EventfdFlags, eventfd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Keeps this process in its world; leaves it when it is dropped.
pub(crate) struct Membership {
    state: Arc<State>,
    watcher: Option<JoinHandle<()>>,
}

/// Meets the other processes. Beside the transport, the world's origin.
pub(crate) fn join(rendezvous: &Rendezvous) -> Result<(Arc<dyn Transport>, Membership, Instant), Error> {
    let Met { board, links, pids } = meet(rendezvous)?;
    let failed = |what: &str, error: String| rendezvous.error(format!("{what}: {error}"));
    let stop = eventfd(0, EventfdFlags::CLOEXEC)
        .map_err(|errno| failed("no event descriptor could be had", errno.to_string()))?;
    let origin = clock::instant(board.origin());
    let state = Arc::new(State::new(rendezvous.pe, board, links, stop));
    let theirs = state.clone();
    let watcher = std::thread::Builder::new()
        .name("longreach watcher".to_owned())
        .spawn(move || watch(&theirs, &pids))
        .map_err(|error| failed("the watcher could not be started", error.to_string()))?;
    Ok((state.clone(), Membership { state, watcher: Some(watcher) }, origin))
}

impl Drop for Membership {
    fn drop(&mut self) {
        // This PE does not come back: who still waits for it learns so.
        self.state.ledger(self.state.own).finish(u64::MAX);
        (0..self.state.links.len()).for_each(|pe| self.state.ring(pe));
        // An event descriptor takes the first write always.
        let stopped = rustix::io::write(&self.state.stop, &1u64.to_ne_bytes());
        if let (Ok(_), Some(watcher)) = (stopped, self.watcher.take()) {
            // It does not panic; if it did, its message has been printed.
            let _ = watcher.join();
        }
    }
}

//! The thread of each process that hears the others, and notices when one is gone.

use super::link::Received;
use super::state::State;
use super::wire::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A PE that is still there.
struct Peer {
    pe: usize,
    /// Readable when the process has ended. A link tells it too, unless a child of the process has inherited it.
    process: Option<OwnedFd>,
}

/// Hears all other PEs until `State::stop` is readable.
pub(super) fn watch(state: &Arc<State>, pids: &[i32]) {
    let mut peers: Vec<Peer> = (0..pids.len())
        .filter(|&pe| pe != state.own)
        .map(|pe| {
            let process = Pid::from_raw(pids[pe]).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            Peer { pe, process }
        })
        .collect();
    loop {
        let mut fds = vec![PollFd::new(&state.stop, PollFlags::IN)];
        for peer in &peers {
            if let Some(link) = &state.links[peer.pe] {
                fds.push(PollFd::from_borrowed_fd(link.socket(), PollFlags::IN));
            }
            fds.extend(peer.process.iter().map(|process| PollFd::new(process, PollFlags::IN)));
        }
        // Interrupted or not, everything is looked at again.
        let _ = poll(&mut fds, None);
        if !fds[0].revents().is_empty() {
            return;
        }
        peers.retain(|peer| {
            // First whether it is gone, then what it has said: what it said before it went counts.
            let ended = peer.process.as_ref().is_some_and(|process| {
                let mut fd = [PollFd::new(process, PollFlags::IN)];
                let now = rustix::time::Timespec::default();
                matches!(poll(&mut fd, Some(&now)), Ok(ready) if ready > 0)
            });
            let closed = !hear(state, peer.pe);
            if ended || closed {
                state.lost(peer.pe);
            }
            !(ended || closed)
        });
    }
}

/// Takes in all that `pe` has said; returns whether its end of the link is open.
fn hear(state: &State, pe: usize) -> bool {
    let Some(link) = &state.links[pe] else {
        return false;
    };
    loop {
        match link.receive() {
            Received::Message(Message::Given { key, call, value, part }, file) => {
                state.heard(pe, key, &call, value, part.zip(file));
            }
            Received::Nothing => return true,
            Received::Closed => return false,
            // PEs of a world have been admitted as equals; one that talks nonsense has lost its mind.
            Received::Message(..) | Received::Noise => return false,
        }
    }
}

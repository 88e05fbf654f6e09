//! How the processes of a world meet: PE 0 listens at a name that the others know, and gives each the board and a
//! link to every other.
//!
//! The name is an abstract one: nothing is left of it when the socket is closed. Anybody may try to connect, so both
//! ends ask the kernel whose process the other one is, and PE 0 asks for the job's token where there is one.

use super::board::Board;
use super::clock;
use super::link::{Link, Received, SOCKET};
use super::wire::{Message, PROTOCOL};
use crate::agreement::digest;
use crate::environment::Rendezvous;
use crate::error::Error;
use crate::failure::{Failure, FailureKind, Operation};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketAddrUnix, accept_with, bind, connect, listen, socket_with};
use rustix::process::geteuid;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A name that is taken may be that of a world that is about to go.
const TAKEN: Duration = Duration::from_secs(1);
/// A connection that says nothing is closed after this long.
const SILENCE: Duration = Duration::from_secs(5);
/// Connections that have not said yet who they are; the oldest has to go.
const STRANGERS: usize = 256;
/// Connections accepted at a time: few enough beside `STRANGERS` that each is heard before it has to go.
const ACCEPTED: usize = 64;
/// How often a late PE 0 is tried for, and the deadline is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// PE 0's reasons get this much longer than the deadline to come.
const SLACK: Duration = Duration::from_secs(2);

/// What a process has when all have met.
pub(super) struct Met {
    pub(super) board: Board,
    /// Links to the other PEs; none at this one's own place.
    pub(super) links: Vec<Option<Link>>,
    /// Process numbers of all PEs; 0 where the kernel does not tell.
    pub(super) pids: Vec<i32>,
}

/// Meets the other PEs. Collective.
pub(super) fn meet(rendezvous: &Rendezvous) -> Result<Met, Error> {
    match rendezvous.pe {
        0 => Host::new(rendezvous)?.meet(),
        _ => join(rendezvous),
    }
}

/// The rendezvous's name: readable where it fits.
fn address(rendezvous: &Rendezvous) -> Result<SocketAddrUnix, Errno> {
    let Rendezvous { job, world, .. } = rendezvous;
    let uid = geteuid().as_raw();
    let readable = format!("longreach/{uid}/{job}/{world}");
    let name = if readable.len() <= 100 {
        readable
    } else {
        format!("longreach/{uid}/{:016x}/{:016x}", digest(job.as_bytes()), digest(world.as_bytes()))
    };
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let (family, kind, flags) = SOCKET;
    socket_with(family, kind, flags, None)
}

/// Whether the process at the other end is of the same user as this one; and its number.
fn same_user(socket: impl AsFd) -> Result<i32, u32> {
    match socket_peercred(socket) {
        Ok(peer) if peer.uid == geteuid() => Ok(peer.pid.as_raw_nonzero().get()),
        Ok(peer) => Err(peer.uid.as_raw()),
        Err(_) => Err(u32::MAX),
    }
}

fn wait_for(sockets: &[&OwnedFd], links: &[&Link], timeout: Duration) {
    let mut fds: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
    fds.extend(links.iter().map(|link| PollFd::from_borrowed_fd(link.socket(), PollFlags::IN)));
    let timeout = timeout.try_into().ok();
    // However it ends, the caller looks at everything again.
    let _ = poll(&mut fds, timeout.as_ref());
}

/// A PE that has said who it is.
struct Guest {
    link: Link,
    pid: i32,
}

/// A connection that has not.
struct Stranger {
    guest: Guest,
    since: Instant,
}

/// PE 0 while it waits for the others.
struct Host<'r> {
    rendezvous: &'r Rendezvous,
    socket: OwnedFd,
    until: Instant,
    strangers: Vec<Stranger>,
    guests: Vec<Option<Guest>>,
}

impl<'r> Host<'r> {
    fn new(rendezvous: &'r Rendezvous) -> Result<Self, Error> {
        let failed = |what: &str, errno: Errno| rendezvous.error(format!("{what}: {errno}"));
        let address = address(rendezvous).map_err(|errno| failed("its name makes no address", errno))?;
        let began = Instant::now();
        let socket = socket().map_err(|errno| failed("no socket could be had", errno))?;
        while let Err(errno) = bind(&socket, &address) {
            if errno != Errno::ADDRINUSE {
                return Err(failed("no rendezvous could be opened", errno));
            }
            if began.elapsed() > TAKEN {
                let text = "another process has opened the rendezvous: start one PE 0 a job, and give each job that \
                            runs at the same time its own LONGREACH_JOB";
                return Err(rendezvous.error(text.to_owned()));
            }
            std::thread::sleep(LOOK);
        }
        listen(&socket, 4096).map_err(|errno| failed("nobody can connect", errno))?;
        let until = began + rendezvous.deadline;
        let guests = (0..rendezvous.pes).map(|_| None).collect();
        Ok(Self { rendezvous, socket, until, strangers: Vec::new(), guests })
    }

    fn meet(mut self) -> Result<Met, Error> {
        match self.gather().and_then(|()| self.introduce()) {
            Ok((board, pids)) => {
                let links = self.guests.into_iter().map(|guest| Some(guest?.link)).collect();
                Ok(Met { board, links, pids })
            }
            Err(reason) => {
                let refused = Message::Refused { reason: reason.clone() };
                for guest in self.guests.iter().flatten() {
                    // A guest that does not get it has gone, or will see that PE 0 has.
                    let _ = guest.link.send(&refused, None);
                }
                Err(self.rendezvous.error(reason))
            }
        }
    }

    /// Returns when all PEs are there.
    fn gather(&mut self) -> Result<(), String> {
        loop {
            let missing: Vec<usize> =
                (1..self.rendezvous.pes).filter(|&pe| self.guests[pe].is_none()).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= self.until {
                let seconds = self.rendezvous.deadline.as_secs_f64();
                return Err(format!(
                    "PEs {missing:?} did not come within {seconds} s: start all {} PEs, or raise LONGREACH_DEADLINE",
                    self.rendezvous.pes
                ));
            }
            let links: Vec<&Link> = self.strangers.iter().map(|stranger| &stranger.guest.link).collect();
            let guests = self.guests.iter().flatten().map(|guest| &guest.link);
            wait_for(&[&self.socket], &links.into_iter().chain(guests).collect::<Vec<_>>(), LOOK);
            self.accept();
            self.hear_strangers()?;
            self.hear_guests()?;
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let Ok(socket) = accept_with(&self.socket, SOCKET.2) else { return };
            // Another user's process is not worth an answer.
            if let Ok(pid) = same_user(&socket) {
                if self.strangers.len() == STRANGERS {
                    self.strangers.remove(0);
                }
                let guest = Guest { link: Link::new(socket), pid };
                self.strangers.push(Stranger { guest, since: Instant::now() });
            }
        }
    }

    fn hear_strangers(&mut self) -> Result<(), String> {
        for Stranger { guest, since } in std::mem::take(&mut self.strangers) {
            match guest.link.receive() {
                Received::Nothing if since.elapsed() < SILENCE => {
                    self.strangers.push(Stranger { guest, since })
                }
                Received::Message(Message::Hello { protocol, job, world, pe, pes, token }, None) => {
                    let Rendezvous { job: ours, world: name, token: secret, pes: size, .. } = self.rendezvous;
                    let refuse = |reason: String| {
                        // Whoever it was does not have to hear it.
                        let _ = guest.link.send(&Message::Refused { reason }, None);
                    };
                    if (&job, &world, &token) != (ours, name, secret) {
                        refuse("the rendezvous is another job's, or the token is wrong".to_owned());
                        continue;
                    }
                    // From here on it is one of this job, and what is wrong is wrong for all.
                    let wrong = if protocol != PROTOCOL {
                        Some(format!(
                            "PE {pe} speaks `{protocol}`, PE 0 `{PROTOCOL}`: use one version of longreach"
                        ))
                    } else if pes != *size {
                        Some(format!(
                            "PE {pe} was started for {pes} PEs, PE 0 for {size}: start all for as many"
                        ))
                    } else if pe == 0 || pe >= pes || self.guests[pe].is_some() {
                        Some(format!(
                            "a second process says that it is PE {pe} of {pes}: give each its own number"
                        ))
                    } else {
                        None
                    };
                    if let Some(reason) = wrong {
                        refuse(reason.clone());
                        return Err(reason);
                    }
                    self.guests[pe] = Some(guest);
                }
                // Noise, silence, and those that have changed their mind.
                _ => {}
            }
        }
        Ok(())
    }

    /// Guests say nothing before they are answered: one that is heard has died, or is none.
    fn hear_guests(&self) -> Result<(), String> {
        for (pe, guest) in self.guests.iter().enumerate() {
            if guest.as_ref().is_some_and(|guest| !matches!(guest.link.receive(), Received::Nothing)) {
                return Err(died(pe));
            }
        }
        Ok(())
    }

    /// Gives every PE the board and its links.
    fn introduce(&self) -> Result<(Board, Vec<i32>), String> {
        let pes = self.rendezvous.pes;
        let board = Board::new(pes, clock::now())
            .map_err(|errno| format!("PE 0 could not have the board's memory for {pes} PEs: {errno}"))?;
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let pids: Vec<i32> =
            self.guests.iter().map(|guest| guest.as_ref().map_or(own, |guest| guest.pid)).collect();
        let guests = || self.guests.iter().enumerate().filter_map(|(pe, guest)| Some((pe, guest.as_ref()?)));
        let told = |pe, outcome: Result<(), Errno>| outcome.map_err(|_| died(pe));
        for (pe, guest) in guests() {
            let welcome = Message::Welcome { pids: pids.clone() };
            told(pe, self.tell(guest, &welcome, board.file()))?;
        }
        for (a, one) in guests() {
            for (b, other) in guests().filter(|(b, _)| *b > a) {
                let (first, second) =
                    Link::pair().map_err(|errno| format!("PE 0 could not link PEs {a} and {b}: {errno}"))?;
                told(a, self.tell(one, &Message::Link { peer: b }, first.socket()))?;
                told(b, self.tell(other, &Message::Link { peer: a }, second.socket()))?;
            }
        }
        Ok((board, pids))
    }

    fn tell(&self, guest: &Guest, message: &Message, file: impl AsFd) -> Result<(), Errno> {
        loop {
            match guest.link.send(message, Some(file.as_fd())) {
                // It reads when it gets to run; so many descriptors may be under way.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS)
                    if Instant::now() < self.until + SLACK =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }
}

fn died(pe: usize) -> String {
    let operation = Operation::outside("world creation");
    let (kind, waited, message) = (FailureKind::Died, Duration::ZERO, String::new());
    Failure { kind, pe, operation, waited, message }.to_string()
}

/// Any other PE: finds PE 0 and is introduced to the others.
fn join(rendezvous: &Rendezvous) -> Result<Met, Error> {
    let failed = |reason: String| rendezvous.error(reason);
    let Rendezvous { job, world, pe, pes, token, deadline } = rendezvous.clone();
    let link = find(rendezvous)?;
    let protocol = PROTOCOL.to_owned();
    link.send(&Message::Hello { protocol, job, world, pe, pes, token }, None)
        .map_err(|errno| failed(format!("PE 0 could not be told of PE {pe}: {errno}")))?;
    // PE 0 listens since the connection at the latest, so its deadline ends before this one.
    let until = Instant::now() + deadline + SLACK;
    let mut links: Vec<Option<Link>> = (0..pes).map(|_| None).collect();
    let mut board = None;
    let mut missing = pes - 2;
    loop {
        match link.receive() {
            Received::Message(Message::Welcome { pids }, Some(file)) if pids.len() == pes => {
                let opened = Board::open(file, pes)
                    .map_err(|errno| failed(format!("PE {pe} could not map the board: {errno}")))?;
                board = Some((opened, pids));
            }
            Received::Message(Message::Link { peer }, Some(file)) if peer < pes && links[peer].is_none() => {
                links[peer] = Some(Link::new(file));
                missing = missing.saturating_sub(1);
            }
            Received::Message(Message::Refused { reason }, _) => return Err(failed(reason)),
            Received::Nothing if Instant::now() >= until => {
                let seconds = (deadline + SLACK).as_secs_f64();
                return Err(failed(format!("PE 0 has not answered for {seconds} s: look at what it does")));
            }
            Received::Nothing => wait_for(&[], &[&link], LOOK),
            Received::Closed => return Err(failed(died(0))),
            _ => return Err(failed("PE 0 said what it should not: use one version of longreach".to_owned())),
        }
        if missing == 0
            && let Some((board, pids)) = board.take()
        {
            links[0] = Some(link);
            return Ok(Met { board, links, pids });
        }
    }
}

/// Connects to PE 0, which may be late.
fn find(rendezvous: &Rendezvous) -> Result<Link, Error> {
    let failed = |what: &str, errno: Errno| rendezvous.error(format!("{what}: {errno}"));
    let address = address(rendezvous).map_err(|errno| failed("its name makes no address", errno))?;
    let until = Instant::now() + rendezvous.deadline;
    loop {
        let socket = socket().map_err(|errno| failed("no socket could be had", errno))?;
        match connect(&socket, &address) {
            Ok(()) => {
                return match same_user(&socket) {
                    Ok(_) => Ok(Link::new(socket)),
                    Err(uid) => Err(rendezvous.error(format!(
                        "user {uid} has opened the rendezvous, and this process is of user {}: choose another \
                         LONGREACH_JOB",
                        geteuid().as_raw()
                    ))),
                };
            }
            // Nobody there yet, or too many at the door.
            Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(LOOK.min(rendezvous.deadline / 16));
            }
            Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => {
                let seconds = rendezvous.deadline.as_secs_f64();
                return Err(rendezvous.error(format!(
                    "PE 0 did not open the rendezvous within {seconds} s: start all {} PEs, or raise LONGREACH_DEADLINE",
                    rendezvous.pes
                )));
            }
            Err(errno) => return Err(failed("PE 0 could not be reached", errno)),
        }
    }
}

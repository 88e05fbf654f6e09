//! Connections between two PEs: whole messages, and descriptors with them.

use super::wire::{Message, decode, encode};
use rustix::cmsg_space;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sockets keep messages apart, tell of the other end's death, are not inherited and never block.
pub(super) const SOCKET: (AddressFamily, SocketType, SocketFlags) =
    (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK));

/// Bytes of the largest message; a longer one is noise.
const LARGEST: usize = 1 << 16;

/// One end of a connection.
pub(super) struct Link(OwnedFd);

/// What an end has received.
pub(super) enum Received {
    /// A message, with its descriptor where it has one.
    Message(Message, Option<OwnedFd>),
    /// Bytes that are no message.
    Noise,
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    Closed,
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The two ends of a new connection.
    pub(super) fn pair() -> Result<(Self, Self), Errno> {
        let (family, kind, flags) = SOCKET;
        let (a, b) = socketpair(family, kind, flags, None)?;
        Ok((Self(a), Self(b)))
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a message whole, or fails at once: with `AGAIN` where the other end has to read first.
    pub(super) fn send(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let bytes = encode(message);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        // A peer that is gone is an error here and not a signal.
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives one message, if there is one.
    pub(super) fn receive(&self) -> Received {
        let mut bytes = vec![0; LARGEST];
        // Room for some more than a message has: what is too many is closed below, or by the kernel.
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                // A reset says that the other end is gone with messages unread. What it has sent comes all the same,
                // and then the end.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => return Received::Closed,
                Ok(received) => break received,
            }
        };
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let mut files: Vec<OwnedFd> = files.flatten().collect();
        if received.bytes == 0 {
            return Received::Closed;
        }
        match decode(&bytes[..received.bytes]) {
            Some(message) if !received.flags.contains(ReturnFlags::TRUNC) && files.len() <= 1 => {
                Received::Message(message, files.pop())
            }
            _ => Received::Noise,
        }
    }
}

//! What PEs that are processes need of the system, each really tried.

use super::Attempt;

/// Tries everything.
#[cfg(target_os = "linux")]
pub fn tried() -> Vec<Attempt> {
    linux::tried()
}

/// Nothing of it is there.
#[cfg(not(target_os = "linux"))]
pub fn tried() -> Vec<Attempt> {
    vec![Attempt::of("Linux", Err("this system is another one".to_owned()), "Linux 5.3 or newer")]
}

#[cfg(target_os = "linux")]
mod linux {
    use super::Attempt;
    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
    use rustix::io::{Errno, IoSlice, IoSliceMut};
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    };
    use rustix::process::{Pid, PidfdFlags, getpid};
    use rustix::thread::futex;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::AtomicU32;

    const SECCOMP: &str = "a container or sandbox whose system-call filter allows it, and Linux 5.3 or newer";
    const PAGE: u64 = 4096;

    pub fn tried() -> Vec<Attempt> {
        let attempt = |name, tried: Result<(), Errno>, enable| {
            Attempt::of(name, tried.map_err(|errno| errno.to_string()), enable)
        };
        vec![
            attempt("sealed memory files (memfd_create)", memory_file().map(drop), SECCOMP),
            attempt("waits on shared words (futex)", word(), SECCOMP),
            attempt("watching processes (pidfd_open)", watching(), SECCOMP),
            attempt(
                "abstract sockets with credentials",
                credentials(),
                "a system-call filter that allows Unix sockets",
            ),
            attempt(
                "passing descriptors (SCM_RIGHTS)",
                passing(),
                "a system-call filter that allows sendmsg and recvmsg",
            ),
        ]
    }

    /// A memory file of a page that is reserved and cannot shrink.
    fn memory_file() -> Result<OwnedFd, Errno> {
        let file = rustix::fs::memfd_create("longreach", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, PAGE)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PAGE)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        match rustix::fs::ftruncate(&file, 0) {
            Err(Errno::PERM) => Ok(file),
            // A seal that does not hold is as good as none.
            _ => Err(Errno::NOTSUP),
        }
    }

    fn word() -> Result<(), Errno> {
        let word = AtomicU32::new(1);
        // The word is not 0, so that nothing is waited for.
        match futex::wait(&word, futex::Flags::empty(), 0, None) {
            Ok(()) | Err(Errno::AGAIN) => futex::wake(&word, futex::Flags::empty(), 1).map(drop),
            Err(errno) => Err(errno),
        }
    }

    fn watching() -> Result<(), Errno> {
        rustix::process::pidfd_open(getpid(), PidfdFlags::empty()).map(drop)
    }

    fn credentials() -> Result<(), Errno> {
        let socket = || {
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        };
        let own = Pid::as_raw(Some(getpid()));
        let name = format!("longreach-doctor-{own}");
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        let (server, client) = (socket()?, socket()?);
        rustix::net::bind(&server, &address)?;
        rustix::net::listen(&server, 1)?;
        rustix::net::connect(&client, &address)?;
        let accepted = rustix::net::accept_with(&server, SocketFlags::CLOEXEC)?;
        let peer = rustix::net::sockopt::socket_peercred(&accepted)?;
        if peer.pid == getpid() && peer.uid == rustix::process::geteuid() { Ok(()) } else { Err(Errno::PERM) }
    }

    fn passing() -> Result<(), Errno> {
        let file = memory_file()?;
        rustix::io::pwrite(&file, b"longreach", 0)?;
        let (from, to) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        rustix::net::sendmsg(&from, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        rustix::net::recvmsg(&to, &mut [IoSliceMut::new(&mut [0])], &mut control, flags)?;
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let mut text = [0; 9];
        rustix::io::pread(passed.ok_or(Errno::BADF)?, &mut text, 0)?;
        if &text == b"longreach" { Ok(()) } else { Err(Errno::BADF) }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_descriptor_that_works_arrives() {
            passing().unwrap();
        }

        #[test]
        fn a_file_that_is_sealed_keeps_its_size() {
            let file = memory_file().unwrap();
            assert_eq!(rustix::fs::ftruncate(&file, 2 * PAGE), Err(Errno::PERM));
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, PAGE);
        }
    }
}

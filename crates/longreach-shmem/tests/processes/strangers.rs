//! Those who are not of the world: noise at the rendezvous, false PEs, other users.

use crate::{one_at_a_time, rendezvous, run, sum};
use longreach_forked::{End, fork, forked};
use longreach_shmem::{Rendezvous, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, connect, listen, recv, sendmsg, socket_with,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Where processes of user `uid` meet.
fn address(uid: u32, rendezvous: &Rendezvous) -> SocketAddrUnix {
    let Rendezvous { job, world, .. } = rendezvous;
    SocketAddrUnix::new_abstract_name(format!("longreach/{uid}/{job}/{world}").as_bytes()).expect("a name")
}

fn own_address(rendezvous: &Rendezvous) -> SocketAddrUnix {
    address(rustix::process::geteuid().as_raw(), rendezvous)
}

/// Connects as soon as PE 0 listens.
fn knock(address: &SocketAddrUnix) -> OwnedFd {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let socket = socket();
        match connect(&socket, address) {
            Ok(()) => return socket,
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            Err(errno) => panic!("PE 0 does not listen: {errno}"),
        }
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); 256];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    // It may have been shown the door already.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

fn hello(rendezvous: &Rendezvous, pe: &str, pes: &str, token: &str) -> String {
    let Rendezvous { job, world, .. } = rendezvous;
    format!(
        r#"{{"Hello":{{"protocol":"longreach processes 1","job":"{job}","world":"{world}","pe":{pe},"pes":{pes},"token":{token}}}}}"#
    )
}

/// One hostile connection. None of them knows the token.
fn attack(random: &mut StdRng, rendezvous: &Rendezvous, kept: &mut Vec<OwnedFd>) {
    let socket = knock(&own_address(rendezvous));
    let number = |random: &mut StdRng| match random.random_range(0..5) {
        0 => "-1".to_owned(),
        1 => "18446744073709551616".to_owned(),
        2 => "\"1\"".to_owned(),
        _ => random.random_range(0..4u32).to_string(),
    };
    let token = ["null", "\"wrong\"", "\"\"", "7", "\"of the test\""][random.random_range(0..5)];
    let mut text = hello(rendezvous, &number(random), &number(random), token).into_bytes();
    match random.random_range(0..9) {
        // Silence, to the end or for ever.
        0 => {}
        1 => kept.push(socket.try_clone().expect("a descriptor")),
        // Noise.
        2 => {
            let noise: Vec<u8> = (0..random.random_range(1..3000)).map(|_| random.random()).collect();
            send(&socket, &noise, &[]);
        }
        // Something of another kind, or too long.
        3 => send(&socket, br#"{"Welcome":{"pids":[1,2,3]}}"#, &[]),
        4 => send(&socket, &vec![b'['; 150_000], &[]),
        // A hello, cut, changed, with descriptors, or twice.
        5 => {
            text.truncate(random.random_range(1..text.len()));
            send(&socket, &text, &[]);
        }
        6 => {
            for _ in 0..random.random_range(1..4) {
                let place = random.random_range(0..text.len());
                text[place] = random.random();
            }
            send(&socket, &text, &[]);
        }
        7 => {
            let file = socket.as_fd();
            send(&socket, &text, &vec![file; random.random_range(1..9)]);
        }
        _ => {
            send(&socket, &text, &[]);
            send(&socket, &text, &[]);
        }
    }
}

#[test]
fn noise_at_the_rendezvous_lets_nobody_in_and_keeps_nobody_out() {
    let _one = one_at_a_time();
    for seed in 0..4 {
        let rendezvous = rendezvous(3);
        let host = fork(|| run(&rendezvous, 0, sum));
        let mut random = StdRng::seed_from_u64(seed);
        let mut kept = Vec::new();
        (0..150).for_each(|_| attack(&mut random, &rendezvous, &mut kept));
        // A PE between the strangers, and strangers after it.
        let first = fork(|| run(&rendezvous, 1, sum));
        (0..150).for_each(|_| attack(&mut random, &rendezvous, &mut kept));
        let second = fork(|| run(&rendezvous, 2, sum));
        for child in [host, first, second] {
            assert_eq!(child.wait(), End::Returned(b"6".to_vec()), "seed {seed}");
        }
    }
}

#[test]
fn a_flood_of_connections_keeps_nobody_out() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let host = fork(|| run(&rendezvous, 0, sum));
    let address = own_address(&rendezvous);
    let mut open: Vec<OwnedFd> = (0..600).map(|_| knock(&address)).collect();
    let guest = fork(|| run(&rendezvous, 1, sum));
    // PE 0 may be through before all of these.
    open.extend((0..100).filter_map(|_| {
        let socket = socket();
        connect(&socket, &address).is_ok().then_some(socket)
    }));
    assert_eq!(guest.wait(), End::Returned(b"3".to_vec()));
    assert_eq!(host.wait(), End::Returned(b"3".to_vec()));
}

#[test]
fn a_wrong_token_is_told_so_and_the_world_goes_on() {
    let _one = one_at_a_time();
    let rendezvous = rendezvous(2);
    let ends = forked(3, |number| match number {
        2 => run(&Rendezvous { token: Some("guessed".to_owned()), ..rendezvous.clone() }, 1, sum),
        pe => {
            // The false one is first.
            std::thread::sleep(Duration::from_millis(if pe == 1 { 300 } else { 0 }));
            run(&rendezvous, pe, sum)
        }
    });
    assert_eq!(ends[..2], [End::Returned(b"3".to_vec()), End::Returned(b"3".to_vec())]);
    let End::Returned(text) = &ends[2] else { panic!("{ends:?}") };
    assert!(String::from_utf8_lossy(text).contains("the token is wrong"), "{ends:?}");
}

#[test]
fn a_false_pe_0_is_an_error_and_never_a_hang() {
    let _one = one_at_a_time();
    let answers: [(&[u8], bool); 8] = [
        (b"", false),
        (b"noise", false),
        (br#"{"Welcome":{"pids":[1,2,3]}}"#, false),
        // A descriptor that is no board.
        (br#"{"Welcome":{"pids":[1,2,3]}}"#, true),
        (br#"{"Welcome":{"pids":[]}}"#, true),
        (br#"{"Link":{"peer":99}}"#, true),
        (br#"{"Given":{"key":"k","call":"c","value":1,"part":null}}"#, false),
        (br#"{"Refused":{"reason":"not you"}}"#, false),
    ];
    for (answer, file) in answers {
        let rendezvous = rendezvous(3);
        let listener = socket();
        bind(&listener, &own_address(&rendezvous)).expect("the name");
        listen(&listener, 4).expect("a listener");
        let guest = fork(|| run(&rendezvous, 1, sum));
        let socket = accept(&listener).expect("a guest");
        let mut heard = [0; 4096];
        recv(&socket, &mut heard[..], rustix::net::RecvFlags::empty()).expect("a hello");
        send(&socket, answer, &[socket.as_fd()][..usize::from(file)]);
        drop(socket);
        let End::Returned(text) = guest.wait() else { panic!("{}", String::from_utf8_lossy(answer)) };
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("-world `w` of job"), "{text}");
    }
}

/// Makes the calling process another user's for good.
fn become_nobody() {
    // SAFETY: a plain system call; the process has one thread.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn another_users_process_is_refused_on_both_sides() {
    let _one = one_at_a_time();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED another_users_process_is_refused_on_both_sides: only root can be another user");
        return;
    }
    // As a guest that even knows the token.
    let rendezvous = rendezvous(2);
    let host = fork(|| run(&rendezvous, 0, sum));
    let thief = fork(|| {
        become_nobody();
        let socket = knock(&address(0, &rendezvous));
        send(&socket, hello(&rendezvous, "1", "2", "\"of the tests\"").as_bytes(), &[]);
        let mut heard = [0; 64];
        // The end of the connection is all that it hears.
        let heard = recv(&socket, &mut heard[..], rustix::net::RecvFlags::empty());
        vec![u8::from(matches!(heard, Ok((_, 0)) | Err(_)))]
    });
    assert_eq!(thief.wait(), End::Returned(vec![1]));
    let guest = fork(|| run(&rendezvous, 1, sum));
    assert_eq!(guest.wait(), End::Returned(b"3".to_vec()));
    assert_eq!(host.wait(), End::Returned(b"3".to_vec()));

    // As a false PE 0.
    let other = crate::rendezvous(2);
    let host = fork(|| {
        become_nobody();
        let listener = socket();
        bind(&listener, &address(0, &other)).expect("the name");
        listen(&listener, 4).expect("a listener");
        std::thread::sleep(Duration::from_secs(2));
        Vec::new()
    });
    let guest = fork(|| {
        let world = World::join(&Rendezvous { pe: 1, ..other.clone() });
        world.map(drop).expect_err("another user's rendezvous").to_string().into_bytes()
    });
    let End::Returned(text) = guest.wait() else { panic!("the guest") };
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("user 65534 has opened the rendezvous"), "{text}");
    assert_eq!(host.wait(), End::Returned(Vec::new()));
}

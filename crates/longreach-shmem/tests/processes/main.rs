//! Worlds of processes: meeting, leaving, dying, and those who do not belong.
#![cfg(all(target_os = "linux", not(any(loom, shuttle))))]

mod deaths;
mod meeting;
mod strangers;

use longreach_shmem::{Error, Operation, Pe, Rendezvous, World};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tests that fork run one at a time; the others sleep here, and hold nothing.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How PE 0 of a new world of `pes` PEs meets the others.
fn rendezvous(pes: usize) -> Rendezvous {
    static JOBS: AtomicU64 = AtomicU64::new(0);
    Rendezvous {
        job: format!("processes {} {}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed)),
        world: "w".to_owned(),
        pe: 0,
        pes,
        token: Some("of the tests".to_owned()),
        deadline: Duration::from_secs(10),
    }
}

/// Joins as PE `pe` and runs `program`; what it returns, or the error after a `-`.
fn run(
    rendezvous: &Rendezvous,
    pe: usize,
    program: impl Fn(&Pe) -> Result<String, Error> + Send + Sync,
) -> Vec<u8> {
    let world = World::join(&Rendezvous { pe, ..rendezvous.clone() });
    let result = world.and_then(|world| world.run(program));
    match result {
        Ok(mut results) => results.remove(0).into_bytes(),
        Err(error) => format!("-{error}").into_bytes(),
    }
}

/// Adds up what all PEs write, with a barrier on each side.
fn sum(pe: &Pe) -> Result<String, Error> {
    let team = pe.team()?;
    let (buffer, signals) = (team.allocate(1)?, team.signals(1)?);
    buffer.write(team.rank(), 0, &[team.rank() as u8 + 1])?;
    for peer in 0..team.size() {
        signals.add(peer, 0, 1)?;
    }
    let next = (team.rank() + 1) % team.size();
    signals.wait(0, team.size() as u64, "host", next, "host", Operation::outside("sum"))?;
    let mut sum = 0u32;
    for peer in 0..team.size() {
        let mut byte = [0];
        buffer.read(peer, 0, &mut byte)?;
        sum += u32::from(byte[0]);
    }
    team.barrier()?;
    Ok(sum.to_string())
}

/// Abstract sockets of the tests of this process.
fn sockets() -> usize {
    let name =
        format!("@longreach/{}/processes {} ", rustix::process::geteuid().as_raw(), std::process::id());
    std::fs::read_to_string("/proc/net/unix")
        .expect("sockets")
        .lines()
        .filter(|line| line.contains(&name))
        .count()
}

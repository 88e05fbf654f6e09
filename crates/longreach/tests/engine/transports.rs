//! Runs on threads and, where LONGREACH_TRANSPORT is `processes`, on forked processes too, whose results must be the
//! same to the last bit.

use crate::harness::Part;
use longreach::{Error, Pe, Tensor, World};
use std::sync::Mutex;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

/// Results as bytes, to be compared.
pub trait Bytes {
    fn bytes(&self) -> Vec<u8>;
}

impl Bytes for () {
    fn bytes(&self) -> Vec<u8> {
        Vec::new()
    }
}

impl Bytes for Tensor {
    fn bytes(&self) -> Vec<u8> {
        let shape = self.shape().map(|len| len.to_ne_bytes()).concat();
        [&shape, self.elements().bytes()].concat()
    }
}

impl Bytes for Part {
    fn bytes(&self) -> Vec<u8> {
        [&self.out, &self.lse].into_iter().chain(&self.grads).flat_map(Bytes::bytes).collect()
    }
}

impl<T: Bytes> Bytes for Vec<T> {
    fn bytes(&self) -> Vec<u8> {
        self.iter().flat_map(Bytes::bytes).collect()
    }
}

/// Runs `program` on `pes` PEs of a new world and returns their results in order.
pub fn on_all<T: Bytes + Send + 'static>(
    pes: usize,
    program: impl Fn(&Pe) -> Result<T, Error> + Send + Sync,
) -> Result<Vec<T>, Error> {
    let results = World::threads(pes)?.with_deadline(DEADLINE).run(&program);
    if processes() {
        let theirs = on_processes(pes, &program);
        match &results {
            Err(error) => assert!(theirs.iter().all(Result::is_err), "threads fail: {error}; {theirs:?}"),
            Ok(results) => {
                for (pe, (ours, theirs)) in results.iter().zip(theirs).enumerate() {
                    assert!(theirs.is_ok_and(|theirs| theirs == ours.bytes()), "PE {pe} of {pes} differs");
                }
            }
        }
    }
    results
}

/// Runs `program`, which must fail, and returns what it failed with on each PE: threads first, then processes.
pub fn errors_on_all(pes: usize, program: impl Fn(&Pe) -> Result<(), Error> + Send + Sync) -> Vec<String> {
    let texts = Mutex::new(vec![String::new(); pes]);
    let outcome = World::threads(pes)
        .unwrap()
        .with_deadline(DEADLINE)
        .run(|pe| program(pe).inspect_err(|error| texts.lock().unwrap()[pe.number()] = error.to_string()));
    assert!(outcome.is_err(), "no PE failed");
    let mut texts = texts.into_inner().unwrap();
    if processes() {
        texts.extend(on_processes(pes, &program).into_iter().map(|end| end.expect_err("a failure")));
    }
    texts
}

fn processes() -> bool {
    match std::env::var("LONGREACH_TRANSPORT").as_deref() {
        Err(_) | Ok("threads") => false,
        Ok("processes") => true,
        Ok(other) => panic!("LONGREACH_TRANSPORT is {other}: it may be threads or processes"),
    }
}

/// What each PE's program ended with.
#[cfg(target_os = "linux")]
fn on_processes<T: Bytes + Send + 'static>(
    pes: usize,
    program: &(impl Fn(&Pe) -> Result<T, Error> + Send + Sync),
) -> Vec<Result<Vec<u8>, String>> {
    use longreach::Rendezvous;
    use longreach_forked::{End, forked};
    use std::sync::atomic::{AtomicU64, Ordering};

    static WORLDS: AtomicU64 = AtomicU64::new(0);
    // Of this process: in a child it would be another number.
    let job = format!("tests {}", std::process::id());
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    let rendezvous = |pe| Rendezvous {
        job: job.clone(),
        world: format!("world {world}"),
        pe,
        pes,
        token: Some("of the tests".to_owned()),
        deadline: DEADLINE,
    };
    let ends = forked(pes, |pe| {
        let world = World::join(&rendezvous(pe)).expect("a world");
        // What the program itself fails with; the run may know better who is to blame.
        let own = Mutex::new(None);
        let results =
            world.run(|pe| program(pe).inspect_err(|error| *own.lock().unwrap() = Some(error.to_string())));
        match results {
            Ok(results) => [b"+".to_vec(), results.bytes()].concat(),
            Err(error) => {
                let text = own.into_inner().unwrap().unwrap_or_else(|| error.to_string());
                format!("-{text}").into_bytes()
            }
        }
    });
    ends.into_iter()
        .enumerate()
        .map(|(pe, end)| match end {
            End::Returned(bytes) if bytes[0] == b'+' => Ok(bytes[1..].to_vec()),
            End::Returned(bytes) => Err(String::from_utf8_lossy(&bytes[1..]).into_owned()),
            other => panic!("PE {pe} ended: {other:?}"),
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn on_processes<T>(
    _pes: usize,
    _program: &(impl Fn(&Pe) -> Result<T, Error> + Send + Sync),
) -> Vec<Result<Vec<u8>, String>> {
    panic!("LONGREACH_TRANSPORT=processes needs Linux");
}

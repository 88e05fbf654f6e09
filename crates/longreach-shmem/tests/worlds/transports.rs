//! Runs on both transports.

use longreach_device::sync::{Mutex, lock};
use longreach_shmem::{Error, Pe, World};
use std::fmt::{Debug, Display};

/// Runs that are made on processes too.
pub trait OnAll {
    /// As `run`; on processes, PEs end in the same results, or one of them with the same error.
    fn on_all<T, E, F>(&self, program: F) -> Result<Vec<T>, E>
    where
        T: Debug + Send + 'static,
        E: From<Error> + Display + Send + 'static,
        F: Fn(&Pe) -> Result<T, E> + Send + Sync;
}

impl OnAll for World {
    fn on_all<T, E, F>(&self, program: F) -> Result<Vec<T>, E>
    where
        T: Debug + Send + 'static,
        E: From<Error> + Display + Send + 'static,
        F: Fn(&Pe) -> Result<T, E> + Send + Sync,
    {
        let results = self.run(&program);
        if processes() {
            let theirs = on_processes(self, |world| match world.run(&program) {
                Ok(results) => format!("{:?}", results[0]),
                Err(error) => format!("failed: {}", words(&error)),
            });
            match &results {
                Ok(results) => {
                    let ours: Vec<_> = results.iter().map(|result| format!("{result:?}")).collect();
                    assert_eq!(ours, theirs);
                }
                Err(error) => {
                    assert!(theirs.contains(&format!("failed: {}", words(error))), "{error}: {theirs:?}")
                }
            }
        }
        results
    }
}

/// Runs `program`, which must fail on some PE, and returns what each PE ended with, beside the error of the run.
pub fn errors(
    world: &World,
    program: impl Fn(&Pe) -> Result<(), Error> + Send + Sync,
) -> (Error, Vec<Option<Error>>) {
    let ends = Mutex::new(vec![None; world.pes()]);
    let noting = |pe: &Pe| program(pe).inspect_err(|error| lock(&ends)[pe.number()] = Some(error.clone()));
    let error = world.run(noting).expect_err("a failure");
    let ours = lock(&ends).clone();
    if processes() {
        let theirs = on_processes(world, |world| {
            *lock(&ends) = vec![None; world.pes()];
            world.run(noting).expect_err("a failure");
            lock(&ends)[world.own().expect("a process")].as_ref().map(words).unwrap_or_default()
        });
        let ours: Vec<_> = ours.iter().map(|end| end.as_ref().map(words).unwrap_or_default()).collect();
        assert_eq!(ours, theirs);
    }
    (error, ours)
}

/// The text of an error without its seconds, which differ from run to run.
pub fn timeless(error: &impl ToString) -> String {
    let text = error.to_string();
    match text.split_once(", after ").and_then(|(before, rest)| Some((before, rest.split_once(" s")?.1))) {
        Some((before, after)) => format!("{before}{after}"),
        None => text,
    }
}

/// What an error says, whoever says it: a PE may find it out, or hear of it from one that was quicker.
fn words(error: &impl ToString) -> String {
    let text = timeless(error);
    // Of several that wait for the same PE, any may be the first to say so.
    if let Some((who, _)) = text.split_once(" stalled during").or_else(|| text.split_once(" left during")) {
        return format!("{who} is late or gone");
    }
    let heard = ["failed during", "refused during"].iter().any(|how| text.contains(how));
    match text.split_once(": ").filter(|_| heard) {
        Some((_, words)) => words.to_owned(),
        None => text,
    }
}

fn processes() -> bool {
    match std::env::var("LONGREACH_TRANSPORT").as_deref() {
        Err(_) | Ok("threads") => false,
        Ok("processes") => true,
        Ok(other) => panic!("LONGREACH_TRANSPORT is {other}: it may be threads or processes"),
    }
}

/// What `program` says on each PE of a world of forked processes as large and as patient as `like`.
#[cfg(target_os = "linux")]
fn on_processes(like: &World, program: impl Fn(&World) -> String) -> Vec<String> {
    use longreach_forked::{End, forked};
    use longreach_shmem::Rendezvous;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let rendezvous = Rendezvous {
        job: format!("tests {}", std::process::id()),
        world: format!("world {}", WORLDS.fetch_add(1, Ordering::Relaxed)),
        pe: 0,
        pes: like.pes(),
        token: Some("of the tests".to_owned()),
        deadline: std::time::Duration::from_secs(20),
    };
    let ends = forked(like.pes(), |pe| {
        let world = World::join(&Rendezvous { pe, ..rendezvous.clone() }).expect("a world");
        program(&world.with_deadline(like.deadline())).into_bytes()
    });
    let returned = ends.into_iter().enumerate().map(|(pe, end)| match end {
        End::Returned(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("PE {pe} ended: {other:?}"),
    });
    returned.collect()
}

#[cfg(not(target_os = "linux"))]
fn on_processes(_like: &World, _program: impl Fn(&World) -> String) -> Vec<String> {
    panic!("LONGREACH_TRANSPORT=processes needs Linux");
}

//! How a run's failure is told: a line for every PE that has survived, and with `--json` one object.

use crate::error::{Error, complain, status};
use crate::inject::Fault;
use crate::stdout;
use longreach::{Failure, FailureKind, ShmemError, World};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The PE that prints the object waits so long for the others to have told.
const TOGETHER: Duration = Duration::from_secs(5);

/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);

/// How often a running world is looked at.
const WATCH: Duration = Duration::from_millis(50);

/// A process that is still in a world so long after that has failed does not get out of it.
const STUCK: Duration = Duration::from_millis(500);

/// The world that runs, for whoever has to end it.
static RUNNING: Mutex<Option<Arc<Running>>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<Arc<Running>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A world that runs, and how its failure is to be told.
pub struct Running {
    world: World,
    fault: Option<Fault>,
    json: bool,
    /// Whether it has been told; locked while it is.
    told: Mutex<bool>,
}

/// A world runs while this lives.
pub struct Guard {
    running: Arc<Running>,
    /// Nothing is ever sent: the watching thread ends when this does.
    _watched: Sender<()>,
}

impl Guard {
    /// `world` runs from now on. Where it fails and this process does not get out of it, because a thread of it
    /// stalls, the process tells and ends all the same.
    pub fn new(world: &World, fault: Option<Fault>, json: bool) -> Self {
        let running = Arc::new(Running { world: world.clone(), fault, json, told: Mutex::new(false) });
        *self::running() = Some(running.clone());
        let (watched, ended) = channel();
        let theirs = running.clone();
        let thread = std::thread::Builder::new().name("failure watch".to_owned());
        // Where there is no thread to be had the run has worse to tell.
        let _ = thread.spawn(move || theirs.watch(&ended));
        Self { running, _watched: watched }
    }

    /// Tells of the world's failure, once; the status to end with, none where the world has not failed.
    pub fn tell(&self) -> Result<Option<u8>, Error> {
        self.running.tell()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *running() = None;
    }
}

impl Running {
    fn watch(&self, ended: &Receiver<()>) {
        let mut failed: Option<Instant> = None;
        while ended.recv_timeout(WATCH) == Err(RecvTimeoutError::Timeout) {
            if self.world.check().is_err() && failed.get_or_insert_with(Instant::now).elapsed() > STUCK {
                // A line that cannot be printed changes nothing: the process ends with the same status.
                let _ = self.tell();
                std::process::exit(i32::from(status::RUN_FAILED));
            }
        }
    }

    /// Tells of the world's failure, once; the status to end with, none where the world has not failed.
    fn tell(&self) -> Result<Option<u8>, Error> {
        let Err(ShmemError::Failed(failure)) = self.world.check() else {
            return Ok(None);
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *told, true) {
            self.tell_once(&failure)?;
        }
        Ok(Some(status::RUN_FAILED))
    }

    fn tell_once(&self, failure: &Failure) -> Result<(), Error> {
        let reporters = reporters(failure, self.world.pes(), self.fault.as_ref());
        let own = self.world.own();
        let hint = hint(failure);
        for pe in reporters.iter().filter(|pe| own.is_none_or(|own| own == **pe)) {
            complain(&format!("PE {pe}: {failure}{hint}"));
            self.world.set_reported(*pe);
        }
        if !self.json || own.is_some_and(|own| Some(&own) != reporters.first()) {
            return Ok(());
        }
        let start = Instant::now();
        while self.world.reported_by() != reporters && start.elapsed() < TOGETHER {
            std::thread::sleep(LOOK);
        }
        let Failure { kind, pe, operation, waited, .. } = failure;
        print(json!({
            "kind": kind.name(),
            "pe": pe,
            "operation": operation.name,
            "stage": operation.stage.unwrap_or(0),
            "epoch": operation.epoch,
            "waited_seconds": waited.as_secs_f64(),
            "reported_by": self.world.reported_by(),
        }))
    }
}

/// The limit on memory, where there is one that may be why a PE has failed and that it has not told itself.
fn hint(failure: &Failure) -> String {
    let unsaid = matches!(failure.kind, FailureKind::Died | FailureKind::Failed | FailureKind::Refused)
        && !failure.message.contains("ulimit");
    if unsaid { limit() } else { String::new() }
}

/// The limit on this process's memory in brackets, with a blank before it; nothing where there is none.
#[cfg(unix)]
pub use crate::memory::limit;

/// Only Unix tells of such a limit.
#[cfg(not(unix))]
pub fn limit() -> String {
    String::new()
}

/// Prints the one object of a run that has failed.
pub fn print(error: Value) -> Result<(), Error> {
    stdout::print(&format!("{}\n", json!({ "error": error })))
}

/// The one object of PEs that have not met, which PE 0 prints.
pub fn print_unmet(deadline: Duration) -> Result<(), Error> {
    print(json!({
        "kind": FailureKind::Failed.name(),
        "pe": null,
        "operation": "rendezvous",
        "stage": 0,
        "epoch": 0,
        "waited_seconds": deadline.as_secs_f64(),
        "reported_by": [0],
    }))
}

/// The PEs that tell of `failure`: all that can. A PE that is made to fail plays dead.
fn reporters(failure: &Failure, pes: usize, fault: Option<&Fault>) -> Vec<usize> {
    let silent = match failure.kind {
        FailureKind::Died | FailureKind::Stalled | FailureKind::Left => Some(failure.pe),
        _ => fault.map(|fault| fault.pe),
    };
    let reporters: Vec<usize> = (0..pes).filter(|pe| Some(*pe) != silent).collect();
    if reporters.is_empty() { vec![failure.pe] } else { reporters }
}

/// This process cannot go on for `reason`: its world fails, if one runs, which is told; else nothing is.
#[cfg(unix)]
pub fn gives_up(reason: &str) -> bool {
    let Some(running) = running().clone() else {
        return false;
    };
    running.world.fail(running.world.own().unwrap_or(0), reason);
    // Where telling fails, there is nobody to tell.
    let _ = running.tell();
    true
}

/// This process ends because of a signal: the status that it ends with when its world has failed before, of which it
/// tells. Otherwise the other PEs learn that this one goes on purpose.
pub fn leave() -> Option<u8> {
    let running = running().take()?;
    match running.tell() {
        Ok(Some(status)) => Some(status),
        // What cannot be printed is not printed.
        Err(_) => Some(status::RUN_FAILED),
        Ok(None) => {
            running.world.leave();
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach::Operation;

    fn failure(kind: FailureKind) -> Failure {
        let operation = Operation::outside("forward");
        Failure { kind, pe: 1, operation, waited: Duration::ZERO, message: String::new() }
    }

    #[test]
    fn all_tell_but_those_that_cannot() {
        let fault: Fault = "fail@pe=1,forward,stage=0".parse().unwrap();
        let died = failure(FailureKind::Died);
        assert_eq!(reporters(&died, 3, None), [0, 2]);
        assert_eq!(reporters(&failure(FailureKind::Refused), 3, None), [0, 1, 2]);
        assert_eq!(reporters(&failure(FailureKind::Failed), 3, None), [0, 1, 2]);
        assert_eq!(reporters(&failure(FailureKind::Failed), 3, Some(&fault)), [0, 2]);
        let alone = Failure { pe: 0, ..failure(FailureKind::Stalled) };
        assert_eq!(reporters(&alone, 1, None), [0]);
    }

    #[test]
    fn a_failure_is_told_once() {
        let world = World::threads(2).unwrap();
        let running = Running { world: world.clone(), fault: None, json: false, told: Mutex::new(false) };
        assert_eq!(running.tell().unwrap(), None);
        let failed = world.run(|pe| match pe.number() {
            0 => Err(ShmemError::NoSuchRank { rank: 7, size: 2 }),
            _ => Ok(()),
        });
        failed.unwrap_err();
        assert_eq!(running.tell().unwrap(), Some(3));
        assert_eq!(world.reported_by(), [0, 1]);
        assert_eq!(running.tell().unwrap(), Some(3));
    }
}

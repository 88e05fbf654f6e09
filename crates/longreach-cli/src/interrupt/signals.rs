//! Signals as a thread of this process sees them.

use crate::memory;
use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Signals that end the process where nothing else is to become of them.
const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Where signals go in place of ending the process.
static RECIPIENT: Mutex<Option<Sender<i32>>> = Mutex::new(None);

/// Asks the listening thread for more signals.
static LISTENER: OnceLock<Handle> = OnceLock::new();

/// Starts the thread that signals end in.
pub fn listen() -> io::Result<()> {
    // `nohup` and the like have a process ignore SIGHUP, and mean it.
    let wanted = ENDING.into_iter().filter(|&signal| signal != SIGHUP || !ignored(signal));
    let mut signals = Signals::new(wanted.chain([SIGABRT]))?;
    // SAFETY: `hold` is async-signal-safe: it loads an atomic and sleeps. After `signals`, which it must not hold up.
    unsafe { signal_hook::low_level::register(SIGABRT, memory::hold) }?;
    // A write beyond the limit on the size of files then fails, as other writes do. Programs that are launched do not
    // inherit that.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    memory::reserve();
    // The program calls this once; a second listener would only end the process as well.
    let _ = LISTENER.set(signals.handle());
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGABRT {
                memory::aborts();
                continue;
            }
            let recipient = RECIPIENT.lock().unwrap_or_else(PoisonError::into_inner);
            let delivered = recipient.as_ref().is_some_and(|recipient| recipient.send(signal).is_ok());
            drop(recipient);
            if !delivered && ENDING.contains(&signal) {
                super::end(signal);
            }
        }
    })?;
    Ok(())
}

/// From now on signals, and `more` ones, arrive at the receiver. When that is dropped, they end the process
/// again or, `more` ones, do nothing.
pub fn deliver(more: &[i32]) -> io::Result<Receiver<i32>> {
    let (sender, receiver) = channel();
    *RECIPIENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    let listener = LISTENER.get().ok_or_else(|| io::Error::other("nothing listens for signals"))?;
    more.iter().filter(|&&signal| !ignored(signal)).try_for_each(|&signal| listener.add_signal(signal))?;
    Ok(receiver)
}

/// Whether this process was started with `signal` ignored; false where the system does not tell.
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

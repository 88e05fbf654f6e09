//! What becomes of forked children. Forking wants a process of one thread, so this file has a main of its own.

#[cfg(target_os = "linux")]
fn main() {
    use longreach_forked::{End, fork, forked};
    let captured = [3u8, 4];
    let ends = forked(3, |pe| [&captured[..], &[pe as u8]].concat());
    assert_eq!(ends, [0, 1, 2].map(|pe| End::Returned(vec![3, 4, pe])));
    assert_eq!(fork(|| panic!("no {}", 7)).wait(), End::Panicked("no 7".to_owned()));
    assert_eq!(fork(|| std::process::exit(5)).wait(), End::Exited(5));
    let child = fork(|| {
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    });
    child.signal(9);
    assert_eq!(child.wait(), End::Signalled(9));
    let big = fork(|| vec![9; 1 << 20]).wait();
    assert!(matches!(big, End::Returned(bytes) if bytes.len() == 1 << 20));
    let idle = std::thread::spawn(std::thread::park);
    assert_eq!(fork(|| vec![1]).wait(), End::Returned(vec![1]));
    idle.thread().unpark();
    idle.join().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let refused = std::panic::catch_unwind(|| drop(fork(Vec::new)));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(refused.is_err(), "a fork beside a thread at work");
    });
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("forked processes are tested on Linux only");
}

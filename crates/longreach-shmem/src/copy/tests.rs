//! Every way that this program could copy, held to the same.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(plain_copies))]
use std::time::{Duration, Instant};

type Read = unsafe fn(*const u8, &mut [u8]);
type Write = unsafe fn(*mut u8, &[u8]);

/// The ways that there are here, by name; the first is the one that is taken.
fn ways() -> Vec<(&'static str, Read, Write)> {
    vec![
        ("taken", super::read, super::write),
        #[cfg(not(plain_copies))]
        ("portable", super::portable::read, super::portable::write),
        #[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri))))]
        ("string", instructions::read_string, instructions::write_string),
        #[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri))))]
        ("vectors", instructions::read_vectors, instructions::write_vectors),
    ]
}

#[cfg(all(target_arch = "x86_64", not(any(plain_copies, miri))))]
mod instructions {
    use crate::copy::x86_64::{string, vectors};

    pub unsafe fn read_string(from: *const u8, into: &mut [u8]) {
        // SAFETY: the caller's promise.
        unsafe { string(from, into.as_mut_ptr(), into.len()) }
    }
    pub unsafe fn write_string(into: *mut u8, from: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { string(from.as_ptr(), into, from.len()) }
    }
    pub unsafe fn read_vectors(from: *const u8, into: &mut [u8]) {
        // SAFETY: the caller's promise.
        unsafe { vectors(from, into.as_mut_ptr(), into.len()) }
    }
    pub unsafe fn write_vectors(into: *mut u8, from: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { vectors(from.as_ptr(), into, from.len()) }
    }
}

/// Memory of whole words.
struct Shared(Vec<AtomicU64>);

impl Shared {
    fn new(len: usize, byte: u8) -> Self {
        let words = len.div_ceil(super::WORD);
        Self((0..words).map(|_| AtomicU64::new(u64::from_ne_bytes([byte; 8]))).collect())
    }
    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast::<u8>().cast_mut()
    }
    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

/// Copies `len` bytes there and back, each side from its own offset: exactly those arrive, and none beside them.
fn there_and_back((name, read, write): (&str, Read, Write), [at, own]: [usize; 2], len: usize) {
    let source: Vec<u8> = (0..own + len).map(|i| (i % 251) as u8).collect();
    let shared = Shared::new(at + len + 40, 0xFE);
    let what = || format!("{name}, {len} bytes, offsets {at} and {own}");
    // SAFETY: the range lies inside the words.
    unsafe { write(shared.start().add(at), &source[own..]) };
    let bytes = shared.bytes();
    assert!(bytes[at..at + len] == source[own..], "{}", what());
    assert!(bytes[..at].iter().chain(&bytes[at + len..]).all(|byte| *byte == 0xFE), "{}", what());
    let mut back = vec![0xFD; own + len + 40];
    // SAFETY: as above.
    unsafe { read(shared.start().add(at), &mut back[own..own + len]) };
    assert!(back[own..own + len] == source[own..], "{}", what());
    assert!(back[..own].iter().chain(&back[own + len..]).all(|byte| *byte == 0xFD), "{}", what());
}

#[test]
fn copies_are_of_exactly_their_bytes_at_every_alignment() {
    let steps: usize = if cfg!(miri) { 5 } else { 1 };
    for way in ways() {
        for at in (0..17).step_by(steps) {
            for own in (0..17).step_by(steps) {
                for len in (0..70).chain([127, 128, 129, 255, 256, 257, 1023]).step_by(steps) {
                    there_and_back(way, [at, own], len);
                }
            }
        }
    }
}

#[cfg(not(miri))]
#[test]
fn long_copies_are_of_exactly_their_bytes() {
    for way in ways() {
        for offsets in [[0, 0], [1, 0], [0, 3], [5, 11], [64, 16], [63, 63]] {
            for len in [4095, 4096, 65_537, (1 << 20) - 1, (3 << 20) + 7] {
                there_and_back(way, offsets, len);
            }
        }
    }
}

/// A page between two that cannot be touched: a copy that goes beyond its words, in either direction, ends the test.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn copies_touch_nothing_beyond_their_words() {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    // A multiple of every page size in use.
    let page = 64 << 10;
    // SAFETY: a mapping of its own, where the kernel likes it; the middle of its three pages is opened.
    let start = unsafe {
        let mapped =
            mmap_anonymous(std::ptr::null_mut(), 3 * page, ProtFlags::empty(), MapFlags::PRIVATE).unwrap();
        mprotect(mapped.add(page), page, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        mapped.cast::<u8>()
    };
    for (name, read, write) in ways() {
        for len in (0..300).chain([page - 1, page]) {
            for at in [0, page - len] {
                let source = vec![len as u8; len];
                let mut back = vec![!(len as u8); len];
                // SAFETY: within the page that is open; words do not cross pages.
                unsafe {
                    write(start.add(page + at), &source);
                    read(start.add(page + at), &mut back);
                }
                assert_eq!(back, source, "{name}");
            }
        }
    }
    // SAFETY: mapped above with that length, and nobody has its address.
    unsafe { munmap(start.cast(), 3 * page) }.unwrap();
}

/// Runs `work` on two threads, which start together.
#[cfg(not(plain_copies))]
fn together(work: impl Fn(usize) + Sync) {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

#[cfg(not(plain_copies))]
const TIMES: usize = if cfg!(miri) { 50 } else { 20_000 };

#[cfg(not(plain_copies))]
#[test]
fn who_reads_while_another_writes_gets_bytes_of_the_one_or_the_other() {
    for (name, read, write) in ways() {
        for (at, len) in [(0, 64), (3, 5), (5, 600)] {
            let shared = Shared::new(at + len, 1);
            together(|thread| {
                for i in 0..TIMES {
                    // SAFETY: the range lies inside the words, which are touched this way only.
                    unsafe {
                        if thread == 0 {
                            write(shared.start().add(at), &vec![1 + (i % 2) as u8; len]);
                        } else {
                            let mut bytes = vec![0; len];
                            read(shared.start().add(at), &mut bytes);
                            assert!(bytes.iter().all(|byte| matches!(byte, 1 | 2)), "{name}: {bytes:?}");
                        }
                    }
                }
            });
        }
    }
}

#[cfg(not(plain_copies))]
#[test]
fn who_writes_beside_another_loses_none_of_its_bytes() {
    for (name, read, write) in ways() {
        // They meet in the midst of a word.
        for ranges in [[(0, 3), (3, 5)], [(1, 12), (13, 40)]] {
            let shared = Shared::new(56, 0);
            together(|thread| {
                let (at, len) = ranges[thread];
                let (mut back, mut byte, begin) = ([0; 40], 0u8, Instant::now());
                // Long enough to run at the same time on a machine that has other work.
                while begin.elapsed() < Duration::from_millis(50) {
                    byte = byte.wrapping_add(1);
                    let bytes = [byte; 40];
                    // SAFETY: the range lies inside the words, which are touched this way only.
                    unsafe {
                        write(shared.start().add(at), &bytes[..len]);
                        read(shared.start().add(at), &mut back[..len]);
                    }
                    assert_eq!(back[..len], bytes[..len], "{name}, thread {thread}");
                }
            });
        }
    }
}

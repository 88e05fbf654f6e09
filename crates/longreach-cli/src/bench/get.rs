//! `longreach bench get`: one-sided gets beside plain copies of as many bytes, and how long a signal takes.

use super::plain::{Plain, page_bytes, small_pages};
use crate::args::{BenchGetArgs, Transport};
use crate::error::{Error, status};
use crate::failed::Guard;
#[cfg(unix)]
use crate::launch;
use crate::place::{self, Place};
use crate::stats::median;
use crate::stdout;
use crate::table::Table;
use longreach::{Kind, Label, Operation, Pe, Piece, ShmemError, Signals, Symmetric, World};
use longreach_device::{Slot, Stream};
use serde_json::json;
use std::time::{Duration, Instant};

/// From 4 KiB to 64 MiB.
const SIZES: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The largest of them.
const LARGEST: usize = 64 << 20;
/// Bytes that gets and copies move in a round, in turn.
const ROUND: usize = 128 << 20;
/// Rounds a size, as many that begin with the gets as with the copies; the median counts.
const ROUNDS: usize = 10;
/// Signals there and back.
const SIGNALS: usize = 5000;
/// The bench's own stream.
const STREAM: &str = "bench";

/// What PE 0 measures.
struct Measured {
    sizes: Vec<Size>,
    /// Microseconds there and back, in order of length.
    signals: Vec<f64>,
}

/// Medians over the rounds of one size.
struct Size {
    bytes: usize,
    get: f64,
    copy: f64,
    ratio: f64,
}

/// Runs the benchmark; returns the exit status.
pub fn get(args: BenchGetArgs) -> Result<u8, Error> {
    if args.transport == Transport::Nvshmem {
        let why = "moves bytes between GPUs: bench attention --device cuda times what it is for";
        return Err(Error::bad("--transport", args.transport.name(), why));
    }
    let failed = |error: ShmemError| Error::Run(error.to_string());
    let (place, pes) = Place::of(args.transport, None)?;
    if pes != 2 {
        let why = format!("a get is between 2 PEs, and this process was started as one of {pes}: start 2");
        return Err(Error::bad("--transport", args.transport.name(), why));
    }
    let world = match &place {
        Place::Threads => World::threads(pes).map_err(failed)?,
        #[cfg(unix)]
        Place::Children => return launch::own::launch(pes, args.json),
        Place::Pe(rendezvous) => place::join(rendezvous, args.json)?,
    };
    small_pages()?;
    let plain = Plain::new(args.transport, LARGEST)?;
    let guard = Guard::new(&world, None, args.json);
    let results = match world.run(|pe| measure(pe, plain.bytes())) {
        Ok(results) => results,
        Err(error) => return guard.tell()?.ok_or_else(|| failed(error)),
    };
    drop(guard);
    let Some(measured) = results.into_iter().flatten().next() else {
        // PE 1 of two processes: PE 0 tells.
        return Ok(status::DONE);
    };
    let text = if args.json { format!("{}\n", object(&args, &measured)) } else { table(&args, &measured) };
    stdout::print(&text)?;
    Ok(status::DONE)
}

fn measure(pe: &Pe, plain: &[u8]) -> Result<Option<Measured>, ShmemError> {
    let team = pe.team()?;
    let (buffer, signals) = (team.allocate(LARGEST)?, team.signals(1)?);
    let stream = team.stream(STREAM, &team.timeline())?;
    // Written once, so that its pages are there, and then read by the other PE, so that they are there for it too.
    let mut bytes = vec![5; 1 << 20];
    let offsets = || (0..LARGEST).step_by(1 << 20);
    offsets().try_for_each(|offset| buffer.write(team.rank(), offset, &bytes))?;
    team.barrier()?;
    offsets().try_for_each(|offset| buffer.read(1 - team.rank(), offset, &mut bytes))?;
    team.barrier()?;
    let sizes = match team.rank() {
        0 => SIZES.iter().map(|&bytes| size(&stream, &buffer, plain, bytes)).collect::<Result<_, _>>()?,
        _ => Vec::new(),
    };
    // The other one has slept, so that both copies had the machine.
    team.barrier()?;
    let signals = answer(team.rank(), &signals)?;
    team.barrier()?;
    buffer.free()?;
    Ok((team.rank() == 0).then_some(Measured { sizes, signals }))
}

fn size(stream: &Stream, buffer: &Symmetric, plain: &[u8], bytes: usize) -> Result<Size, ShmemError> {
    let times = ROUND / bytes;
    let mut slot = Slot::new("what was got", vec![1u8; bytes]);
    let mut into = vec![1u8; bytes];
    let mut copies = || {
        let begin = Instant::now();
        for _ in 0..times {
            into.copy_from_slice(std::hint::black_box(&plain[..bytes]));
            std::hint::black_box(&mut into);
        }
        begin.elapsed()
    };
    let mut rounds = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let before = (round % 2 == 1).then(&mut copies);
        let (get, filled) = gets(stream, buffer, slot, bytes)?;
        slot = filled;
        rounds.push((get, before.unwrap_or_else(&mut copies)));
    }
    let rate = |time: Duration| (times * bytes) as f64 / time.as_secs_f64() * 1e-9;
    let middle = |of: &dyn Fn(&(Duration, Duration)) -> f64| median(rounds.iter().map(of).collect());
    Ok(Size {
        bytes,
        get: middle(&|(get, _)| rate(*get)),
        copy: middle(&|(_, copy)| rate(*copy)),
        // Of each round's pair: what slows the machine for a while slows both.
        ratio: middle(&|(get, copy)| rate(*get) / rate(*copy)),
    })
}

/// How long the gets of a round take, from the queueing of the first to the arrival of the last.
fn gets(
    stream: &Stream,
    buffer: &Symmetric,
    slot: Slot<Vec<u8>>,
    bytes: usize,
) -> Result<(Duration, Slot<Vec<u8>>), ShmemError> {
    let label = || Label::new(Kind::Get, 0, 0).bytes(bytes as u64).peer(1);
    let begin = Instant::now();
    let mut filling = slot.fill(label(), stream);
    for _ in 0..ROUND / bytes {
        buffer.get(stream, label(), 1, vec![Piece::first(bytes, 0)], &mut filling)?;
    }
    let got = filling.finish(stream)?;
    assert_eq!(got.read()?.last(), Some(&5), "what the other PE has written");
    let time = begin.elapsed();
    Ok((time, got.reuse()?))
}

/// PE 0 sets PE 1's word and waits for the answer, again and again; returns how long that took each time.
fn answer(rank: usize, signals: &Signals) -> Result<Vec<f64>, ShmemError> {
    let (peer, operation) = (1 - rank, Operation::outside("signal there and back"));
    let mut times = Vec::with_capacity(SIGNALS);
    for number in 1..=SIGNALS as u64 {
        let begin = Instant::now();
        if rank == 0 {
            signals.set(peer, 0, number)?;
        }
        signals.wait(0, number, "host", peer, "host", operation)?;
        if rank == 1 {
            signals.set(peer, 0, number)?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

impl Measured {
    fn signal(&self, share: f64) -> f64 {
        self.signals[((self.signals.len() - 1) as f64 * share) as usize]
    }
}

fn object(args: &BenchGetArgs, measured: &Measured) -> serde_json::Value {
    let size = |size: &Size| json!({ "bytes": size.bytes, "get_gbps": size.get, "copy_gbps": size.copy, "ratio": size.ratio });
    json!({
        "transport": args.transport.name(),
        "page_bytes": page_bytes(),
        "sizes": measured.sizes.iter().map(size).collect::<Vec<_>>(),
        "signal_round_trip_us": { "median": measured.signal(0.5), "p99": measured.signal(0.99) },
    })
}

fn table(args: &BenchGetArgs, measured: &Measured) -> String {
    let mut table = Table::default();
    table.line(["bytes", "get GB/s", "copy GB/s", "ratio"]);
    for size in &measured.sizes {
        let cells = [size.get, size.copy].map(|rate| format!("{rate:.1}"));
        let [get, copy] = cells;
        table.line([size.bytes.to_string(), get, copy, format!("{:.2}", size.ratio)]);
    }
    format!(
        "transport {}, pages of {} bytes, {} cores, medians of {ROUNDS} rounds of {ROUND} bytes\n\n{}\na signal there and back: {:.1} us (median), \
         {:.1} us (99 of 100)\n",
        args.transport.name(),
        page_bytes(),
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        table.text(),
        measured.signal(0.5),
        measured.signal(0.99)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_object_say_the_same_and_of_what() {
        let sizes = vec![Size { bytes: 4096, get: 6.25, copy: 12.5, ratio: 0.5 }];
        let measured = Measured { sizes, signals: (0..=100).map(|i| f64::from(i) * 0.5).collect() };
        let args = BenchGetArgs { transport: Transport::Processes, json: true };
        let object = object(&args, &measured);
        assert_eq!(
            object["sizes"],
            json!([{ "bytes": 4096, "get_gbps": 6.25, "copy_gbps": 12.5, "ratio": 0.5 }])
        );
        assert_eq!(object["signal_round_trip_us"], json!({ "median": 25.0, "p99": 49.5 }));
        let table = table(&args, &measured);
        let pages = format!("transport processes, pages of {} bytes, ", page_bytes());
        assert!(table.starts_with(&pages) && table.contains(" cores, "), "{table}");
        assert!(table.contains("4096        6.2       12.5   0.50\n"), "{table}");
        assert!(table.ends_with("25.0 us (median), 49.5 us (99 of 100)\n"), "{table}");
    }
}

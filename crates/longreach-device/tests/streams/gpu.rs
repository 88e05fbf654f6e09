//! Streams of a GPU; skipped, after saying so, where there is none.

use crate::label;
use longreach_device::cuda::{Gpu, Memory};
use longreach_device::{Bytes, BytesMut, Kind, Parts, Slot, Stream, Timeline, unwatched};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
    }
}

const BYTES: usize = 256 << 20;

/// Queues copies of `from` to `into`, again and again, which take a while.
fn copy_often(stream: &Stream, from: u64, into: &mut longreach_device::Filling<Memory>) {
    let cuda = stream.cuda().cloned().unwrap();
    stream
        .launch(label(), (into,), move |(into,)| {
            for _ in 0..50 {
                // SAFETY: both have BYTES bytes and live until the stream has been waited for.
                unsafe { cuda.copy(into.address(), from, BYTES) }.map_err(|error| error.into_fault())?;
            }
            Ok(())
        })
        .unwrap();
}

fn bytes(gpu: &Arc<Gpu>, value: u8) -> Memory {
    let mut memory = Memory::new(gpu, BYTES).unwrap();
    let stream = longreach_device::cuda::Stream::new(gpu).unwrap();
    stream.upload(&vec![value; BYTES], &mut memory).unwrap();
    stream.synchronize().unwrap();
    memory
}

fn host(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    longreach_device::cuda::Stream::new(memory.gpu()).unwrap().download(memory, &mut bytes).unwrap();
    bytes
}

#[test]
fn gpu_what_another_stream_still_copies_is_waited_for_on_the_gpu() {
    let Some(gpu) = gpu("gpu_what_another_stream_still_copies_is_waited_for_on_the_gpu") else { return };
    let timeline = Timeline::new(Instant::now());
    let stream = |name| Stream::on_gpu(name, timeline.clone(), unwatched(), &gpu).unwrap();
    let (comm, compute) = (stream("comm"), stream("compute"));
    let (source, old) = (bytes(&gpu, 7), bytes(&gpu, 1));
    let mut filling = Slot::new("rows", old).fill(label(), &comm);
    copy_often(&comm, source.address(), &mut filling);
    let rows = filling.finish(&comm).unwrap();
    let loan = rows.on(label(), &compute);
    let mut copy = Slot::new("copy", bytes(&gpu, 3)).fill(label(), &compute);
    let cuda = compute.cuda().cloned().unwrap();
    let begin = Instant::now();
    compute
        .launch(label(), (&loan, &mut copy), move |(rows, copy)| {
            // SAFETY: both have BYTES bytes, and the loans keep them.
            unsafe { cuda.copy(copy.address(), rows.address(), BYTES) }.map_err(|error| error.into_fault())
        })
        .unwrap();
    loan.give_back(&compute).unwrap();
    let queued = begin.elapsed();
    let copy = copy.finish(&compute).unwrap();
    assert!(host(copy.read().unwrap()).iter().all(|&byte| byte == 7), "read before it was there");
    assert!(queued < Duration::from_millis(5), "queueing took {queued:?}: the host waited");
    // The slot's next user comes after its reader.
    let mut again = rows.reuse().unwrap().fill(label(), &comm);
    copy_often(&comm, source.address(), &mut again);
    again.finish(&comm).unwrap().read().unwrap();
    let spans = timeline.take(1).unwrap();
    let of = |stream: &str, kind| {
        let mut spans = spans.iter().filter(|span| &*span.stream == stream && span.label.kind == kind);
        spans.next().map(|span| (span.start, span.end)).unwrap()
    };
    let (copies, wait, reads) =
        (of("comm", Kind::Tile), of("compute", Kind::Wait), of("compute", Kind::Tile));
    assert!(copies.0 < copies.1 && wait.1 >= copies.1 - 1e-4 && reads.0 >= copies.1 - 1e-4, "{spans:?}");
}

#[test]
fn gpu_memory_is_used_again_and_knows_its_parts() {
    let Some(gpu) = gpu("gpu_memory_is_used_again_and_knows_its_parts") else { return };
    let first = Memory::new(&gpu, 1000).unwrap();
    let address = first.address();
    drop(first);
    let mut second = Memory::new(&gpu, 1023).unwrap();
    assert_eq!((second.address(), second.len()), (address, 1023));
    assert!(matches!(second.part(0), Some(Bytes::Gpu(_))) && second.part(1).is_none());
    assert!(matches!(second.part_mut(0), Some(BytesMut::Gpu(_))));
    let zeros = Memory::zeroed(&gpu, 5000).unwrap();
    assert_eq!(host(&zeros), [0; 5000]);
    let error = Memory::new(&gpu, 1 << 50).unwrap_err().to_string();
    assert!(error.contains(&(1u64 << 50).to_string()) && error.contains("are free"), "{error}");
}

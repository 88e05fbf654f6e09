//! Attention over tiles on a GPU: forward and backward against float64, and beside one call of cuDNN.

use crate::attend::{Case, Layout, Owned, Run, attend, band, expected};
use crate::device::stream;
use cudarc::driver::sys::CUgraphInstantiate_flags as Instantiate;
use cudarc::driver::sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
use longreach_kernels::cuda::cudnn::Element;
use longreach_kernels::cuda::{Context, Memory, Settings, View, forward_scratch};
use longreach_kernels::{DType, Error, Tile};
use longreach_plan::Edge;
use std::ops::Range;

const CAUSAL: (Edge, Edge) = (Edge::Fixed(0), Edge::Diagonal(1));

fn full(q: Range<usize>, kv: Vec<Range<usize>>) -> Owned {
    let keys: usize = kv.iter().map(Range::len).sum();
    let band = band(q.len(), Edge::Fixed(0), Edge::Fixed(keys as i64));
    (q, kv, band)
}

fn one(q: usize, keys: usize, (lo, hi): (Edge, Edge)) -> Vec<Owned> {
    let kv = 0..keys;
    vec![(0..q, vec![kv], band(q, lo, hi))]
}

/// A causal square in chunks of `chunk` rows: each with itself, then with all before it in one gathered tile.
fn two_stages(len: usize, chunk: usize) -> Vec<Owned> {
    let chunks: Vec<Range<usize>> = (0..len).step_by(chunk).map(|at| at..len.min(at + chunk)).collect();
    let own = chunks.iter().map(|q| (q.clone(), Vec::from([q.clone()]), band(q.len(), CAUSAL.0, CAUSAL.1)));
    let earlier = chunks.iter().enumerate().skip(1).map(|(i, q)| {
        // In an order that is not that of memory, so that rows are gathered.
        full(q.clone(), chunks[..i].iter().rev().cloned().collect())
    });
    own.chain(earlier).collect()
}

/// As [`two_stages`], with the earlier keys in two tiles: up to three parts a row.
fn three_parts(len: usize, chunk: usize) -> Vec<Owned> {
    let halves = |(q, kv, band): Owned| match &kv[..] {
        _ if band.hi == CAUSAL.1 => vec![(q, kv, band)],
        [first, rest @ ..] => {
            let middle = first.start + 50;
            let late = std::iter::once(middle..first.end).chain(rest.iter().cloned());
            vec![full(q.clone(), std::iter::once(first.start..middle).collect()), full(q, late.collect())]
        }
        [] => vec![],
    };
    two_stages(len, chunk).into_iter().flat_map(halves).collect()
}

fn documents(lens: &[usize]) -> Vec<Owned> {
    let starts = lens.iter().scan(0, |next, len| Some(std::mem::replace(next, *next + len)));
    let of = |(start, &len): (usize, &usize)| {
        let rows = start..start + len;
        (rows.clone(), Vec::from([rows]), band(len, CAUSAL.0, CAUSAL.1))
    };
    starts.zip(lens).map(of).collect()
}

fn cases() -> Vec<(&'static str, Case)> {
    let base = Case {
        batch: 1,
        heads: [8, 2],
        lens: [512, 512],
        dims: [128, 128],
        element: Element::Bf16,
        layout: Layout::Contiguous,
        tiles: one(512, 512, CAUSAL),
        whole: None,
    };
    let case = |lens: [usize; 2], tiles: Vec<Owned>| Case { lens, tiles, ..base.clone() };
    let window = (Edge::Diagonal(-36), Edge::Diagonal(1));
    let ahead = (Edge::Diagonal(-50), Edge::Diagonal(21));
    let left = (Edge::Diagonal(-90), Edge::Fixed(300));
    let causal = Some(one(512, 512, CAUSAL));
    let split = two_stages(512, 128);
    vec![
        ("full", case([200, 333], one(200, 333, (Edge::Fixed(0), Edge::Fixed(333))))),
        ("causal", base.clone()),
        ("bottom-right", case([137, 400], one(137, 400, (Edge::Fixed(0), Edge::Diagonal(264))))),
        ("top-left, more keys", case([137, 400], one(137, 400, CAUSAL))),
        ("rows that see nothing", case([300, 200], one(300, 200, (Edge::Fixed(0), Edge::Diagonal(-100))))),
        ("window", case([512, 512], one(512, 512, window))),
        ("window ahead", case([300, 300], one(300, 300, ahead))),
        ("left edge only", case([300, 300], one(300, 300, left))),
        ("ranges in another order", case([96, 512], vec![full(0..96, vec![300..512, 7..8, 20..160])])),
        ("documents", case([512, 512], documents(&[1, 100, 2, 1, 255, 64, 89]))),
        ("documents with gaps", case([512, 512], documents(&[1, 100, 0, 63, 7]))),
        ("two stages", Case { tiles: split.clone(), whole: causal.clone(), ..base.clone() }),
        ("three parts", Case { tiles: three_parts(512, 128), whole: causal.clone(), ..base.clone() }),
        (
            "two stages, f16",
            Case { element: Element::F16, tiles: split.clone(), whole: causal.clone(), ..base.clone() },
        ),
        (
            "two stages, 64",
            Case { dims: [64, 64], tiles: two_stages(512, 96), whole: causal.clone(), ..base.clone() },
        ),
        (
            "two stages, MHA",
            Case { heads: [4, 4], tiles: split.clone(), whole: causal.clone(), ..base.clone() },
        ),
        (
            "two stages, 8:1",
            Case { heads: [8, 1], tiles: split.clone(), whole: causal.clone(), ..base.clone() },
        ),
        ("96", Case { dims: [96, 96], ..base.clone() }),
        ("192 and 128", Case { dims: [192, 128], heads: [4, 4], ..base.clone() }),
        ("256", Case { dims: [256, 256], heads: [4, 2], ..base.clone() }),
        ("heads first", Case { layout: Layout::HeadsFirst, batch: 2, tiles: split.clone(), ..base.clone() }),
        (
            "off by an element",
            Case { layout: Layout::Shifted, tiles: two_stages(200, 64), lens: [200, 200], ..base.clone() },
        ),
        (
            "columns apart",
            Case {
                layout: Layout::Apart,
                tiles: two_stages(200, 64),
                lens: [200, 200],
                batch: 2,
                ..base.clone()
            },
        ),
    ]
}

/// Bounds of one call, which are cuDNN's and not ours.
fn most(element: Element) -> f64 {
    if element == Element::Bf16 { 8e-3 } else { 1e-3 }
}

#[test]
fn tiles_of_every_mask_are_right_and_parts_cost_no_accuracy() {
    let Some(stream) = stream("tiles_of_every_mask_are_right_and_parts_cost_no_accuracy") else { return };
    let mut cx = Context::new(&stream, Settings::default()).expect("cuDNN and NVRTC");
    let seed = rand::random();
    println!("cuDNN {}, seed {seed}", cx.cudnn_version());
    let mut failures = Vec::new();
    for (name, case) in cases() {
        let run = match attend(&stream, &mut cx, &case, &case.tiles, seed) {
            Ok(run) => run,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        let exact = expected(&case, seed);
        let errors = run.errors(&exact);
        let line = format!("{name}: {}", show(&errors));
        println!("{line}");
        // NaN is within no bound.
        if !errors.iter().all(|&(what, error)| error <= if what == "lse" { 1e-5 } else { most(case.element) })
        {
            failures.push(line);
        }
        if let Some(whole) = &case.whole {
            let whole = attend(&stream, &mut cx, &case, whole, seed).expect("a whole call").errors(&exact);
            println!("    one call: {}", show(&whole));
            for ((what, ours), (_, theirs)) in errors.iter().zip(&whole) {
                let ratio = match *what {
                    "lse" => continue,
                    "out" => 1.1,
                    _ => 1.3,
                };
                // NaN is more than any bound.
                if ours.is_nan() || *ours > ratio * theirs {
                    failures.push(format!("{name}: {what} {ours:.2e} against {theirs:.2e} of one call"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn show(errors: &[(&str, f64)]) -> String {
    errors.iter().map(|(what, error)| format!("{what} {error:.2e} ")).collect()
}

#[test]
fn a_small_cap_splits_calls_and_changes_no_value() {
    let Some(stream) = stream("a_small_cap_splits_calls_and_changes_no_value") else { return };
    let (_, case) = cases().swap_remove(1);
    let exact = expected(&case, 5);
    let mut scratch = Vec::new();
    for workspace in [1 << 30, 3 << 20, 600 << 10] {
        let mut cx = Context::new(&stream, Settings { workspace, ..Settings::default() }).expect("a context");
        let run = attend(&stream, &mut cx, &case, &case.tiles, 5).expect("attention");
        let errors = run.errors(&exact);
        println!("{workspace}: scratch {:?}, {}", run.scratch, show(&errors));
        assert!(errors.iter().all(|&(_, error)| error <= most(case.element)), "{errors:?}");
        // Rounding up and cuDNN's own workspace come on top of the estimate.
        assert!(run.scratch.iter().all(|&bytes| bytes <= workspace + (64 << 10)), "{:?}", run.scratch);
        scratch.push(run.scratch[1]);
    }
    assert!(scratch[0] > scratch[1] && scratch[1] > scratch[2], "{scratch:?}");
}

#[test]
fn a_deterministic_backward_gives_the_same_bits() {
    let Some(stream) = stream("a_deterministic_backward_gives_the_same_bits") else { return };
    let (_, case) = cases().swap_remove(11);
    let settings = Settings { deterministic: true, ..Settings::default() };
    let mut cx = Context::new(&stream, settings).expect("a context");
    let first = attend(&stream, &mut cx, &case, &case.tiles, 3).expect("attention");
    let errors = first.errors(&expected(&case, 3));
    assert!(errors.iter().all(|&(_, error)| error <= most(case.element)), "{errors:?}");
    let plans = cx.plans();
    for _ in 0..5 {
        let again = attend(&stream, &mut cx, &case, &case.tiles, 3).expect("attention");
        let bits = |run: &Run| {
            [&run.out, &run.lse, &run.dq, &run.dk, &run.dv]
                .map(|x| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        assert!(bits(&first) == bits(&again), "bits differ");
    }
    assert_eq!(cx.plans(), plans, "a call of known shape was planned again");
}

#[test]
fn what_cannot_be_computed_is_refused_before_anything_is_queued() {
    let Some(stream) = stream("what_cannot_be_computed_is_refused_before_anything_is_queued") else { return };
    let mut cx = Context::new(&stream, Settings::default()).expect("a context");
    let (_, base) = cases().swap_remove(1);
    let mut refused = |case: Case, words: &str| {
        let error = attend(&stream, &mut cx, &case, &case.tiles, 1).err().expect("a refusal");
        assert!(error.contains(words), "{error}");
    };
    refused(Case { dims: [60, 60], ..base.clone() }, "head dimension 60");
    refused(Case { dims: [264, 64], heads: [1, 1], ..base.clone() }, "head dimension 264");
    let twice = vec![full(0..512, vec![0..8, 4..9])];
    refused(Case { tiles: twice, ..base.clone() }, "overlap");
    refused(Case { tiles: one(600, 512, CAUSAL), ..base }, "query rows");
}

#[test]
fn work_on_a_capturing_stream_is_refused_by_name() {
    let Some(stream) = stream("work_on_a_capturing_stream_is_refused_by_name") else { return };
    let stream = stream.context().new_stream().expect("a stream");
    let mut cx = Context::new(&stream, Settings::default()).expect("a context");
    // SAFETY: nothing is queued with it.
    let memory = unsafe { Memory::new(1 << 20, 1 << 20) };
    let view = View::contiguous(memory, DType::Bf16, [1, 8, 2, 64]).expect("a view");
    let tile = full(0..8, Vec::from([0..8, 8..8]));
    let tile = Tile { batch: 0..1, q: tile.0, kv: &tile.1, band: &tile.2 };
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).expect("a capture");
    let refused = forward_scratch(&mut cx, &view, &view, &view, std::slice::from_ref(&tile));
    let graph = stream.end_capture(Instantiate::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    assert!(graph.is_ok(), "the capture was hurt");
    assert!(matches!(&refused, Err(Error::Refused(text)) if text.contains("graph capture")), "{refused:?}");
    forward_scratch(&mut cx, &view, &view, &view, &[tile]).expect("after the capture");
}

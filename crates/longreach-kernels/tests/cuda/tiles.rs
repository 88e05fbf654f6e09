//! Tiles: parts of several calls carried together, against float64 of the whole.

use crate::device::{Numbers, normal, stream};
use crate::reference::{exact_where, relative};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use longreach_kernels::Tile;
use longreach_kernels::cuda::{Attention, Element, Gradients, Operands, Scratch, State};
use longreach_plan::{Band, Edge};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::ops::Range;
use std::sync::Arc;

const WORKSPACE: usize = 1 << 30;

/// A tile that owns its parts.
#[derive(Clone)]
struct Part {
    q: Range<usize>,
    kv: Vec<Range<usize>>,
    band: Band,
}

impl Part {
    fn new(q: Range<usize>, kv: &[Range<usize>], lo: Edge, hi: Edge) -> Self {
        let rows = q.len() as i64;
        Self { q, kv: kv.to_vec(), band: Band { q: 0..rows, lo, hi } }
    }

    fn full(q: Range<usize>, kv: &[Range<usize>]) -> Self {
        let keys: usize = kv.iter().map(ExactSizeIterator::len).sum();
        Self::new(q, kv, Edge::Fixed(0), Edge::Fixed(keys as i64))
    }

    fn tile(&self, batch: usize) -> Tile<'_> {
        Tile { batch: 0..batch, q: self.q.clone(), kv: &self.kv, band: &self.band }
    }

    fn sees(&self, row: usize, key: usize) -> bool {
        let mut before = 0;
        for range in &self.kv {
            if range.contains(&key) && self.q.contains(&row) {
                let (t, g) = ((row - self.q.start) as i64, (before + key - range.start) as i64);
                return self.band.lo.at(t) <= g && g < self.band.hi.at(t);
            }
            before += range.len();
        }
        false
    }
}

/// Errors of out in float32, out rounded, lse, dq, dk, dv.
fn errors(stream: &Arc<CudaStream>, shape: &Shape, parts: &[Part], seed: u64) -> [f64; 6] {
    let Shape { batch, q_rows, kv_rows, heads: [hq, hk], dim, element } = *shape;
    let mut random = StdRng::seed_from_u64(seed);
    let mut tensor = |len| Numbers::new(stream, element, &normal(&mut random, len));
    let (q, d_o) = (tensor(batch * q_rows * hq * dim), tensor(batch * q_rows * hq * dim));
    let (k, v) = (tensor(batch * kv_rows * hk * dim), tensor(batch * kv_rows * hk * dim));
    let floats = |len: usize, value: f32| stream.clone_htod(&vec![value; len]).expect("memory");
    let at = |memory: &CudaSlice<f32>| memory.device_ptr(stream).0;
    let operands = Operands {
        q: q.address(stream),
        k: k.address(stream),
        v: v.address(stream),
        batch,
        q_rows,
        kv_rows,
        q_heads: hq,
        kv_heads: hk,
        head_dim: dim,
        value_dim: dim,
        element,
    };
    let scale = (dim as f32).powf(-0.5);
    let tiles: Vec<Tile> = parts.iter().map(|part| part.tile(batch)).collect();
    let mut attention = Attention::new(stream, element, WORKSPACE).expect("an H200 with its libraries");
    let bytes = attention.forward_scratch(&operands, &tiles).expect("plans");
    let bytes = bytes.max(attention.backward_scratch(&operands, &tiles).expect("plans"));
    // NaN, as what a scratch holds is nobody's business.
    let room = stream.clone_htod(&vec![u8::MAX; bytes]).expect("memory");
    let scratch = Scratch { address: room.device_ptr(stream).0, len: bytes };
    let rows = batch * hq * q_rows;
    let [acc, max, sum] = [rows * dim, rows, rows].map(|len| floats(len, f32::NAN));
    let state = State { acc: at(&acc), max: at(&max), sum: at(&sum) };
    let (out, lse) = (floats(rows * dim, f32::NAN), floats(rows, f32::NAN));
    let rounded = Numbers::new(stream, element, &vec![f32::NAN; rows * dim]);
    // Sums begin at 0, as the engine's do.
    let [dq, dk, dv] = [q.exact.len(), k.exact.len(), v.exact.len()].map(|len| floats(len, 0.0));
    let gradients = Gradients {
        o: rounded.address(stream),
        d_o: d_o.address(stream),
        lse: at(&lse),
        dq: at(&dq),
        dk: at(&dk),
        dv: at(&dv),
    };
    // SAFETY: all memory is as large as the shapes say and lives until the stream has been waited for below.
    unsafe {
        attention.reset(&operands, state).expect("a reset");
        attention.forward(&operands, &tiles, scale, state, scratch).expect("a forward");
        attention.finish(&operands, state, at(&out), gradients.o, gradients.lse).expect("an end");
        attention.backward(&operands, &tiles, scale, gradients, scratch).expect("a backward");
    }
    stream.synchronize().expect("the work");

    let got = |memory: &CudaSlice<f32>| -> Vec<f64> {
        stream.clone_dtoh(memory).expect("results").into_iter().map(f64::from).collect()
    };
    let mut found = [got(&out), rounded.now(stream, element), got(&lse), got(&dq), got(&dk), got(&dv)];
    let sees = |row: usize, key: usize| {
        let times = parts.iter().filter(|part| part.sees(row, key)).count();
        assert!(times <= 1, "tiles of a test overlap");
        times == 1
    };
    let size = [hq, hk, q_rows, kv_rows, dim, dim];
    let mut expected: [Vec<f64>; 6] = Default::default();
    for b in 0..batch {
        let of = |x: &[f64]| x[b * x.len() / batch..(b + 1) * x.len() / batch].to_vec();
        let inputs = [&q, &k, &v, &d_o].map(|x| of(&x.exact));
        let [q, k, v, d_o] = &inputs;
        let one = exact_where(size, f64::from(scale), [q, k, v, d_o], sees);
        for (sum, part) in expected.iter_mut().zip([&one.o, &one.o, &one.lse, &one.dq, &one.dk, &one.dv]) {
            sum.extend(part);
        }
    }
    // Rows that see no key are exactly (0, -inf), and leave the norms.
    for i in 0..expected[2].len() {
        if expected[2][i] == f64::NEG_INFINITY {
            assert_eq!(found[2][i], f64::NEG_INFINITY, "lse of row {i}");
            (found[2][i], expected[2][i]) = (0.0, 0.0);
        }
    }
    std::array::from_fn(|i| relative(&found[i], &expected[i]))
}

#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    q_rows: usize,
    kv_rows: usize,
    heads: [usize; 2],
    dim: usize,
    element: Element,
}

const CAUSAL: (Edge, Edge) = (Edge::Fixed(0), Edge::Diagonal(1));

#[test]
fn tiles_of_any_band_and_gathered_keys_add_up_to_the_whole() {
    let Some(stream) = stream("tiles_of_any_band_and_gathered_keys_add_up_to_the_whole") else { return };
    let shape = Shape { batch: 1, q_rows: 96, kv_rows: 200, heads: [4, 2], dim: 64, element: Element::Bf16 };
    let (lo, hi) = CAUSAL;
    let cases: Vec<(&str, Shape, Vec<Part>)> = vec![
        (
            "a causal tile, then keys of three owners in no order",
            Shape { batch: 2, ..shape },
            vec![
                Part::new(0..96, &[0..96], lo, hi),
                Part::full(0..40, &[150..200, 96..110]),
                Part::full(40..96, &[130..150, 180..200, 100..111]),
            ],
        ),
        (
            "causal over gathered keys",
            shape,
            vec![Part::new(3..96, &[100..160, 10..43], lo, hi), Part::full(0..3, &[7..9])],
        ),
        (
            "a window whose ends are cut",
            shape,
            vec![Part::new(0..96, &[20..110], Edge::Diagonal(-10), Edge::Diagonal(12))],
        ),
        (
            "bottom-right",
            Shape { dim: 128, heads: [8, 1], ..shape },
            vec![Part::new(0..96, &[0..200], Edge::Fixed(0), Edge::Diagonal(105))],
        ),
        (
            "rows without any key, one key for one row",
            Shape { element: Element::F16, ..shape },
            vec![
                Part::new(10..50, &[0..7], Edge::Diagonal(0), Edge::Fixed(7)),
                Part::full(60..61, &[199..200]),
            ],
        ),
        (
            "documents",
            Shape { q_rows: 150, kv_rows: 150, ..shape },
            vec![
                Part::new(0..1, &[0..1], lo, hi),
                Part::new(1..70, &[1..70], lo, hi),
                Part::new(70..150, &[70..150], lo, hi),
            ],
        ),
    ];
    let mut failures = Vec::new();
    for (name, shape, parts) in cases {
        let [out, rounded, lse, dq, dk, dv] = errors(&stream, &shape, &parts, 11);
        let most = if shape.element == Element::Bf16 { 8e-3 } else { 1e-3 };
        let line = format!(
            "{name}: out {out:.1e} rounded {rounded:.1e} lse {lse:.1e} dq {dq:.1e} dk {dk:.1e} dv {dv:.1e}"
        );
        println!("{line}");
        if ![(out, most), (rounded, most), (lse, 1e-4), (dq, most), (dk, most), (dv, most)]
            .iter()
            .all(|(error, most)| error <= most)
        {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn parts_cost_no_accuracy_beside_one_call() {
    let Some(stream) = stream("parts_cost_no_accuracy_beside_one_call") else { return };
    let (lo, hi) = CAUSAL;
    for dim in [64, 128] {
        let len = 512;
        let shape = Shape { batch: 1, q_rows: len, kv_rows: len, heads: [8, 2], dim, element: Element::Bf16 };
        let whole = [Part::new(0..len, &[0..len], lo, hi)];
        // Chunks of 64: the diagonal, then all earlier keys, in two parts where there are many.
        let mut parts = Vec::new();
        for chunk in 0..8 {
            let (start, end) = (chunk * 64, chunk * 64 + 64);
            parts.push(Part::new(start..end, &[start..end], lo, hi));
            let middle = start / 2;
            parts.extend(
                [0..middle, middle..start]
                    .into_iter()
                    .filter(|keys| !keys.is_empty())
                    .map(|keys| Part::full(start..end, &[keys])),
            );
        }
        let one = errors(&stream, &shape, &whole, 5);
        let many = errors(&stream, &shape, &parts, 5);
        let ratios: Vec<f64> = many.iter().zip(one).map(|(many, one)| many / one).collect();
        let one = one.map(|error| format!("{error:.1e}"));
        println!("dim {dim}: one call {one:?}, parts over one {ratios:.3?}");
        let most = [1.1, 1.3, 1.5, 1.3, 1.3, 1.3];
        assert!(ratios.iter().zip(most).all(|(ratio, most)| *ratio <= most), "dim {dim}: {ratios:.3?}");
    }
}

//! One attention over tiles, forward and backward, from memory full of NaN.

use crate::device::{bits, number};
use crate::reference::{Exact, Sizes, exact, relative};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use longreach_kernels::cuda::cudnn::Element;
use longreach_kernels::cuda::{
    Context, Memory, State, Sum, View, backward, backward_scratch, cast, finish, forward, forward_scratch,
    reset, settle,
};
use longreach_kernels::{DType, Tile};
use longreach_plan::{Band, Edge};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::ops::Range;
use std::sync::Arc;

/// How operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Batch, rows, heads, columns.
    Contiguous,
    /// Batch, heads, rows, columns.
    HeadsFirst,
    /// Contiguous from the second element on.
    Shifted,
    /// With a gap behind each element.
    Apart,
}

/// A tile: query rows, key rows in gathered order, band.
pub type Owned = (Range<usize>, Vec<Range<usize>>, Band);

#[derive(Clone, Debug)]
pub struct Case {
    pub batch: usize,
    /// Query heads, key heads.
    pub heads: [usize; 2],
    /// Query rows, key rows.
    pub lens: [usize; 2],
    /// Of q and k, of v.
    pub dims: [usize; 2],
    pub element: Element,
    pub layout: Layout,
    pub tiles: Vec<Owned>,
    /// The same as one tile.
    pub whole: Option<Vec<Owned>>,
}

/// Results, float32 widened.
pub struct Run {
    pub out: Vec<f64>,
    pub rounded: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
    /// Bytes, of the forward and of the backward.
    pub scratch: [usize; 2],
}

pub fn band(rows: usize, lo: Edge, hi: Edge) -> Band {
    Band { q: 0..rows as i64, lo, hi }
}

impl Case {
    fn shapes(&self) -> [[usize; 4]; 4] {
        let ([hq, hk], [sq, sk], [d, dv]) = (self.heads, self.lens, self.dims);
        [[self.batch, sq, hq, d], [self.batch, sk, hk, d], [self.batch, sk, hk, dv], [self.batch, sq, hq, dv]]
    }

    /// q, k, v and dout, contiguous, as the GPU has them: key rows that no tile lists are NaN.
    fn inputs(&self, seed: u64) -> [Vec<u16>; 4] {
        let mut random = StdRng::seed_from_u64(seed);
        let listed =
            |row: usize| self.tiles.iter().any(|(_, kv, _)| kv.iter().any(|range| range.contains(&row)));
        let shapes = self.shapes();
        [0, 1, 2, 3].map(|which| {
            let [_, rows, heads, dim] = shapes[which];
            let number = |at: usize| {
                let x = random.sample::<f32, _>(StandardNormal);
                let hidden = (which == 1 || which == 2) && !listed(at / (heads * dim) % rows);
                bits(self.element, if hidden { f32::NAN } else { x })
            };
            (0..shapes[which].iter().product()).map(number).collect()
        })
    }

    fn sees(&self) -> impl Fn(usize, usize) -> bool + Sync {
        let [rows, keys] = self.lens;
        let mut seen = vec![false; rows * keys];
        for (q, kv, band) in &self.tiles {
            let gathered: Vec<usize> = kv.iter().cloned().flatten().collect();
            for row in q.clone().filter(|row| *row < rows) {
                let t = (row - q.start) as i64;
                if band.q.contains(&t) {
                    for g in band.visible(t, gathered.len() as i64) {
                        seen[row * keys + gathered[g as usize]] = true;
                    }
                }
            }
        }
        move |row, key| seen[row * keys + key]
    }

    fn scale(&self) -> f32 {
        (self.dims[0] as f32).powf(-0.5)
    }
}

/// The same in float64, batch entries one after another.
pub fn expected(case: &Case, seed: u64) -> Exact {
    let inputs = case.inputs(seed);
    let widen = |bits: &u16| Some(number(case.element, *bits)).filter(|x| !x.is_nan()).unwrap_or(0.0);
    let inputs = inputs.map(|x| x.iter().map(widen).collect::<Vec<f64>>());
    let ([q_heads, kv_heads], [q_len, kv_len], [dim, value_dim]) = (case.heads, case.lens, case.dims);
    let sizes = Sizes { q_heads, kv_heads, q_len, kv_len, dim, value_dim };
    let sees = case.sees();
    let mut all = Exact { o: vec![], lse: vec![], dq: vec![], dk: vec![], dv: vec![] };
    for b in 0..case.batch {
        let of = |x: &Vec<f64>| x[x.len() / case.batch * b..x.len() / case.batch * (b + 1)].to_vec();
        let entry = inputs.each_ref().map(of);
        let one = exact(&sizes, &sees, f64::from(case.scale()), entry.each_ref().map(|x| &x[..]));
        all.o.extend(one.o);
        all.lse.extend(one.lse);
        all.dq.extend(one.dq);
        all.dk.extend(one.dk);
        all.dv.extend(one.dv);
    }
    all
}

impl Run {
    /// Relative errors by name; rows that see nothing must be exactly 0 and -inf.
    pub fn errors(&self, exact: &Exact) -> Vec<(&'static str, f64)> {
        let pairs = || self.lse.iter().zip(&exact.lse);
        let alike = pairs().all(|(a, b)| (*a == f64::NEG_INFINITY) == (*b == f64::NEG_INFINITY));
        assert!(alike, "rows that see nothing");
        let finite = pairs().filter(|(_, b)| b.is_finite()).map(|(a, b)| (*a, *b));
        let (lse, exact_lse): (Vec<f64>, Vec<f64>) = finite.unzip();
        assert!(self.out.iter().zip(&exact.o).all(|(a, b)| *b != 0.0 || *a == 0.0), "their out");
        vec![
            ("out", relative(&self.out, &exact.o)),
            ("rounded", relative(&self.rounded, &exact.o)),
            ("lse", relative(&lse, &exact_lse)),
            ("dq", relative(&self.dq, &exact.dq)),
            ("dk", relative(&self.dk, &exact.dk)),
            ("dv", relative(&self.dv, &exact.dv)),
        ]
    }
}

/// Memory that a test owns.
struct Buffer {
    _slice: CudaSlice<u8>,
    memory: Memory,
}

impl Buffer {
    fn new(stream: &Arc<CudaStream>, bytes: &[u8]) -> Self {
        let slice = stream.clone_htod(bytes).expect("memory");
        let address = slice.device_ptr(stream).0;
        // SAFETY: the slice lives until the results have been read.
        let memory = unsafe { Memory::new(address, bytes.len()) };
        Self { _slice: slice, memory }
    }

    /// All bits set: NaN in each of the types.
    fn poisoned(stream: &Arc<CudaStream>, bytes: usize) -> Self {
        Self::new(stream, &vec![0xff; bytes])
    }

    fn floats(&self, stream: &Arc<CudaStream>) -> Vec<f64> {
        let bytes = stream.clone_dtoh(&self._slice).expect("results");
        bytes.chunks(4).map(|x| f64::from(f32::from_le_bytes(x.try_into().expect("four bytes")))).collect()
    }

    fn numbers(&self, stream: &Arc<CudaStream>, element: Element) -> Vec<f64> {
        let bytes = stream.clone_dtoh(&self._slice).expect("results");
        bytes.chunks(2).map(|x| number(element, u16::from_le_bytes([x[0], x[1]]))).collect()
    }
}

fn dtype(element: Element) -> DType {
    match element {
        Element::Bf16 => DType::Bf16,
        Element::F16 => DType::F16,
    }
}

/// A view that lies as `layout` says, all else around it NaN.
fn place(stream: &Arc<CudaStream>, case: &Case, values: &[u16], shape: [usize; 4]) -> (Buffer, View) {
    let [_, rows, heads, dim] = shape;
    let (gap, shift) = match case.layout {
        Layout::Contiguous | Layout::HeadsFirst => (1, 0),
        Layout::Shifted => (1, 1),
        Layout::Apart => (2, 0),
    };
    let strides = match case.layout {
        Layout::HeadsFirst => [rows * heads * dim, dim, rows * dim, 1],
        _ => [rows * heads * dim * gap, heads * dim * gap, dim * gap, gap],
    };
    let mut bytes = vec![0xff; (values.len() * gap + shift) * 2];
    for (i, value) in values.iter().enumerate() {
        let index = [i / (rows * heads * dim), i / (heads * dim) % rows, i / dim % heads, i % dim];
        let at: usize = index.iter().zip(strides).map(|(index, stride)| index * stride).sum();
        bytes[(at + shift) * 2..][..2].copy_from_slice(&value.to_le_bytes());
    }
    let mut buffer = Buffer::new(stream, &bytes);
    let whole = buffer.memory;
    // SAFETY: a part of the buffer's memory.
    buffer.memory = unsafe { Memory::new(whole.address() + 2 * shift as u64, whole.bytes() - 2 * shift) };
    let view = View::strided(buffer.memory, dtype(case.element), shape, strides).expect("a view");
    (buffer, view)
}

/// Attends `tiles` with the case's inputs.
pub fn attend(
    stream: &Arc<CudaStream>,
    cx: &mut Context,
    case: &Case,
    tiles: &[Owned],
    seed: u64,
) -> Result<Run, String> {
    let tiles: Vec<Tile> =
        tiles.iter().map(|(q, kv, band)| Tile { batch: 0..case.batch, q: q.clone(), kv, band }).collect();
    let text = |error: longreach_kernels::Error| error.to_string();
    let shapes = case.shapes();
    let inputs = case.inputs(seed);
    let [(_q, q), (_k, k), (_v, v), (_d, dout)] =
        [0, 1, 2, 3].map(|which| place(stream, case, &inputs[which], shapes[which]));
    let [out_shape, rows] = [shapes[3], [case.batch, case.heads[0], case.lens[0], 1]];
    let len = |shape: [usize; 4]| shape.iter().product::<usize>();
    let poisoned = |shape: [usize; 4], size: usize| Buffer::poisoned(stream, len(shape) * size);

    let (acc, max, sum) = (poisoned(out_shape, 4), poisoned(rows, 4), poisoned(rows, 4));
    let mut state = State::new(acc.memory, max.memory, sum.memory, out_shape).map_err(text)?;
    let forward_bytes = forward_scratch(cx, &q, &k, &v, &tiles).map_err(text)?;
    let scratch = Buffer::poisoned(stream, forward_bytes);
    reset(cx, &mut state).map_err(text)?;
    forward(cx, &q, &k, &v, case.scale(), &tiles, scratch.memory, &mut state).map_err(text)?;
    let (out, lse, rounded) = (poisoned(out_shape, 4), poisoned(rows, 4), poisoned(out_shape, 2));
    let out_view = View::contiguous(out.memory, DType::F32, out_shape).expect("a view");
    finish(cx, &state, &out_view, lse.memory).map_err(text)?;
    let rounded_view = View::contiguous(rounded.memory, dtype(case.element), out_shape).expect("a view");
    finish(cx, &state, &rounded_view, lse.memory).map_err(text)?;
    let again = poisoned(out_shape, 2);
    let again_view = View::contiguous(again.memory, dtype(case.element), out_shape).expect("a view");
    let mut exact = Sum::new(out.memory, out_shape).map_err(text)?;
    cast(cx, &mut exact, &again_view).map_err(text)?;
    let both = [&rounded, &again].map(|x| x.numbers(stream, case.element));
    assert!(both[0] == both[1], "rounding at once or after differs");

    let backward_bytes = backward_scratch(cx, &q, &k, &v, &rounded_view, &dout, &tiles).map_err(text)?;
    let scratch = Buffer::poisoned(stream, backward_bytes);
    let gradients = [0, 1, 2].map(|which| poisoned(shapes[which], 4));
    let [mut dq, mut dk, mut dv] =
        [0, 1, 2].map(|which| Sum::new(gradients[which].memory, shapes[which]).expect("a sum"));
    for sum in [&mut dq, &mut dk, &mut dv] {
        sum.clear();
    }
    let (scale, room) = (case.scale(), scratch.memory);
    backward(
        cx,
        &q,
        &k,
        &v,
        &rounded_view,
        &dout,
        lse.memory,
        scale,
        &tiles,
        room,
        &mut dq,
        &mut dk,
        &mut dv,
    )
    .map_err(text)?;
    for sum in [&mut dq, &mut dk, &mut dv] {
        settle(cx, sum).map_err(text)?;
    }
    let [dq, dk, dv] = &gradients;
    let [out, lse, dq, dk, dv] = [&out, &lse, dq, dk, dv].map(|buffer| buffer.floats(stream));
    let [rounded, _] = both;
    Ok(Run { out, rounded, lse, dq, dk, dv, scratch: [forward_bytes, backward_bytes] })
}

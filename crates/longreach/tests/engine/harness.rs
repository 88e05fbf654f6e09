//! Problems, runs of them on several PEs, and their errors against float64.

use crate::transports::on_all;
use longreach::reference::accuracy::Accuracy;
use longreach::reference::{self, Errors};
use longreach::{
    Attention, ContextParallel, DType, Device, Dims, Documents, Elements, Error, HeapSize, Layout, Mask,
    Options, Shards, Stages, Tensor, View,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// Whole (unsharded) inputs of a call.
#[derive(Clone)]
pub struct Problem {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub dout: Tensor,
    pub attention: Attention,
}

/// Sizes of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub value_dim: usize,
    pub dtype: DType,
}

/// N(0,1), rounded to `dtype`.
pub fn normal(seed: u64, dtype: DType, shape: [usize; 4]) -> Tensor {
    let mut random = StdRng::seed_from_u64(seed);
    let count = shape.iter().product();
    let values = (0..count).map(|_| random.sample::<f32, _>(StandardNormal));
    tensor(values, dtype, shape)
}

/// A tensor of `values`, rounded to `dtype`.
pub fn tensor(values: impl Iterator<Item = f32>, dtype: DType, shape: [usize; 4]) -> Tensor {
    let elements = match dtype {
        DType::F32 => Elements::F32(values.collect()),
        DType::F16 => Elements::F16(values.map(half::f16::from_f32).collect()),
        DType::Bf16 => Elements::Bf16(values.map(half::bf16::from_f32).collect()),
    };
    Tensor::new(elements, shape).expect("values of the shape")
}

impl Problem {
    pub fn random(seed: u64, sizes: Sizes, mask: Mask) -> Self {
        let Sizes { batch, q_len, kv_len, q_heads, kv_heads, head_dim, value_dim, dtype } = sizes;
        Self {
            q: normal(seed, dtype, [batch, q_len, q_heads, head_dim]),
            k: normal(seed + 1, dtype, [batch, kv_len, kv_heads, head_dim]),
            v: normal(seed + 2, dtype, [batch, kv_len, kv_heads, value_dim]),
            dout: normal(seed + 3, dtype, [batch, q_len, q_heads, value_dim]),
            attention: Attention::cross(mask, q_len, kv_len),
        }
    }

    pub fn dims(&self) -> Dims {
        Dims::of(&self.q.view(), &self.k.view(), &self.v.view()).expect("fitting inputs")
    }

    pub fn batch(&self) -> usize {
        self.q.shape()[0]
    }
}

/// How a problem is run.
#[derive(Clone, Debug)]
pub struct Setting {
    pub pes: usize,
    pub layout: Layout,
    pub stages: Stages,
    pub threads: usize,
    pub device: Device,
    pub deterministic: bool,
}

impl Setting {
    pub fn new(pes: usize, layout: Layout, stages: usize) -> Self {
        let stages = Stages::Exactly(stages);
        Self { pes, layout, stages, threads: 1, device: Device::Cpu, deterministic: false }
    }

    pub fn options(&self) -> Options {
        Options {
            layout: self.layout.clone(),
            stages: self.stages,
            threads: self.threads,
            device: self.device,
            deterministic: self.deterministic,
            ..Options::default()
        }
    }

    /// Options with a heap that takes all of `problems`.
    pub fn options_for(&self, problems: &[&Problem]) -> Result<Options, Error> {
        let mut options = self.options();
        for problem in problems {
            let (_, need) = longreach::plan(self.pes, &problem.attention, &problem.dims(), &options)?;
            options.heap = options.heap.max(HeapSize::of(&need));
        }
        Ok(options)
    }
}

/// Results of all PEs, put together in global order.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
    pub dq: Vec<f32>,
    pub dk: Vec<f32>,
    pub dv: Vec<f32>,
}

/// The rows of `tensor` that `pe` holds.
pub fn shard(tensor: &Tensor, shards: &Shards, pe: usize) -> Tensor {
    Tensor::gather(&tensor.view(), shards.positions(pe).map(|row| row..row + 1)).expect("memory for a shard")
}

/// Writes the rows that a PE holds, `[batch, rows, width]`, where they belong in `whole`.
pub fn unshard(whole: &mut [f32], part: &Tensor, shards: &Shards, pe: usize) {
    let [batch, rows, heads, dim] = part.shape();
    let (width, data) = (heads * dim, part.as_f32().expect("results are float32"));
    for b in 0..batch {
        for (row, position) in shards.positions(pe).enumerate() {
            let (to, from) = ((b * shards.total() + position) * width, (b * rows + row) * width);
            whole[to..to + width].copy_from_slice(&data[from..from + width]);
        }
    }
}

/// As [`unshard`], of lse: `[batch, heads, rows]`.
pub fn unshard_lse(whole: &mut [f32], part: &Tensor, shards: &Shards, pe: usize) {
    let [batch, heads, rows, _] = part.shape();
    let data = part.as_f32().expect("results are float32");
    for line in 0..batch * heads {
        for (row, position) in shards.positions(pe).enumerate() {
            whole[line * shards.total() + position] = data[line * rows + row];
        }
    }
}

/// What one PE has computed.
pub struct Part {
    pub out: Tensor,
    pub lse: Tensor,
    pub grads: [Tensor; 3],
}

/// One forward and backward on an existing [`ContextParallel`].
pub fn call(cp: &ContextParallel, problem: &Problem) -> Result<Part, Error> {
    let me = cp.team().rank();
    let (q_shards, kv_shards) = cp.shards(problem.batch(), &problem.attention)?;
    let (q, k, v) = (
        shard(&problem.q, &q_shards, me),
        shard(&problem.k, &kv_shards, me),
        shard(&problem.v, &kv_shards, me),
    );
    let dout = shard(&problem.dout, &q_shards, me);
    let forward = cp.forward(&q.view(), &k.view(), &v.view(), &problem.attention)?;
    let (out, lse) = (forward.out.wait()?.clone(), forward.lse.wait()?.clone());
    let grads = forward.saved.backward(&dout.view())?;
    let grads = [grads.dq.wait()?.clone(), grads.dk.wait()?.clone(), grads.dv.wait()?.clone()];
    Ok(Part { out, lse, grads })
}

/// Puts the parts of all PEs together.
pub fn assemble(problem: &Problem, setting: &Setting, parts: &[Part]) -> Results {
    let (q, kv) = longreach::shards(setting.pes, problem.batch(), &problem.attention, &setting.options())
        .expect("shards");
    let len = |tensor: &Tensor| tensor.shape().iter().product::<usize>();
    let nan = |count| vec![f32::NAN; count];
    let [batch, q_len, heads, _] = problem.q.shape();
    let mut results = Results {
        out: nan(len(&problem.dout)),
        lse: nan(batch * heads * q_len),
        dq: nan(len(&problem.q)),
        dk: nan(len(&problem.k)),
        dv: nan(len(&problem.v)),
    };
    for (pe, part) in parts.iter().enumerate() {
        unshard(&mut results.out, &part.out, &q, pe);
        unshard_lse(&mut results.lse, &part.lse, &q, pe);
        unshard(&mut results.dq, &part.grads[0], &q, pe);
        unshard(&mut results.dk, &part.grads[1], &kv, pe);
        unshard(&mut results.dv, &part.grads[2], &kv, pe);
    }
    results
}

/// Every layout, with explicit ranges that are in no order, for `q_len` queries and as many keys.
pub fn layouts(len: usize, pes: usize) -> Vec<Layout> {
    let cut = |i: usize| (len * i / (2 * pes)) as u64;
    // PE r holds the stretches 2r+1 and 2r, in that order.
    let ranges = (0..pes).map(|pe| vec![cut(2 * pe + 1)..cut(2 * pe + 2), cut(2 * pe)..cut(2 * pe + 1)]);
    vec![
        Layout::Zigzag,
        Layout::Contiguous,
        Layout::Striped { block: 1 },
        Layout::Striped { block: 16 },
        Layout::Ranges(ranges.collect()),
    ]
}

/// Documents by their bounds.
pub fn documents(bounds: &[u64]) -> Vec<Documents> {
    vec![Documents::cu_seqlens(bounds)]
}

/// Documents of these lengths, one behind another.
pub fn lengths(lengths: &[u64]) -> Vec<Documents> {
    let mut bounds = vec![0];
    bounds.extend(lengths.iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    }));
    documents(&bounds)
}

/// Runs `check` with the results of `problem` for each of `pes`, in every layout and with several stage counts.
pub fn everywhere(problem: &Problem, pes: &[usize], check: impl Fn(&Setting, &Results)) {
    for &pes in pes {
        let lens = [problem.attention.q_len(), problem.attention.kv_len()];
        for layout in layouts(lens[0], pes) {
            if lens[0] != lens[1] && matches!(layout, Layout::Ranges(_)) {
                continue;
            }
            for stages in [1, 2, pes.max(2) - 1, 2 * pes + 1] {
                let setting = Setting::new(pes, layout.clone(), stages);
                let results = run(problem, &setting).unwrap_or_else(|error| panic!("{setting:?}: {error}"));
                check(&setting, &results);
            }
        }
    }
}

/// Checks the accuracy rule for each of `pes`, as [`everywhere`].
pub fn exact_everywhere(problem: &Problem, pes: &[usize]) {
    let oracle = Oracle::new(problem);
    everywhere(problem, pes, |setting, results| {
        let failures = oracle.failures(results);
        assert!(failures.is_empty(), "{} {setting:?}: {failures:#?}", problem.attention.mask());
    });
}

/// One forward and backward in a new world.
pub fn run(problem: &Problem, setting: &Setting) -> Result<Results, Error> {
    let options = setting.options_for(&[problem])?;
    let parts = on_all(setting.pes, |pe| {
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        call(&cp, problem)
    })?;
    Ok(assemble(problem, setting, &parts))
}

/// Float64 results of a problem, to compare others with.
pub struct Oracle {
    accuracy: Accuracy,
    forward: reference::Forward,
    backward: reference::Backward,
    one_device: [Errors; 5],
}

/// Names of the compared tensors.
pub const TENSORS: [&str; 5] = ["out", "lse", "dq", "dk", "dv"];

impl Oracle {
    pub fn new(problem: &Problem) -> Self {
        Self::on(Device::Cpu, problem)
    }

    /// For results of `device`, which are compared with those of one such.
    pub fn on(device: Device, problem: &Problem) -> Self {
        let (q, k, v, dout): (View, View, View, View) =
            (problem.q.view(), problem.k.view(), problem.v.view(), problem.dout.view());
        let attention = &problem.attention;
        let bands =
            attention.mask().resolve(problem.batch(), attention.q_len(), attention.kv_len()).expect("a mask");
        let scale = f64::from(attention.scale_for(problem.q.shape()[3]));
        let forward = reference::forward(&q, &k, &v, &bands, scale).expect("a reference");
        let backward =
            reference::backward_of(&forward, &q, &k, &v, &dout, &bands, scale).expect("a reference");
        let accuracy = Accuracy::of(device, problem.q.dtype());
        let mut oracle =
            Self { accuracy, forward, backward, one_device: [Errors { max_abs: 0.0, relative: 0.0 }; 5] };
        let alone = Setting { device, ..Setting::new(1, Layout::Contiguous, 1) };
        let one = run(problem, &alone).expect("a run on one device");
        oracle.one_device = oracle.errors(&one);
        oracle
    }

    pub fn errors(&self, results: &Results) -> [Errors; 5] {
        let (forward, backward) = (&self.forward, &self.backward);
        [
            forward.out_errors(&results.out),
            forward.lse_errors(&results.lse),
            forward.dq_errors(&results.dq, backward),
            backward.dk_errors(&results.dk),
            backward.dv_errors(&results.dv),
        ]
        .map(|errors| errors.expect("results of the reference's size"))
    }

    /// Names of tensors that break the accuracy rule, with their errors.
    pub fn failures(&self, results: &Results) -> Vec<String> {
        let errors = self.errors(results);
        let Accuracy { forward, lse, gradients } = self.accuracy;
        let rules = [forward, lse, gradients, gradients, gradients];
        (0..5)
            .filter(|&i| !rules[i].passes(errors[i], self.one_device[i].relative))
            .map(|i| format!("{} {:?}, one device {:?}", TENSORS[i], errors[i], self.one_device[i]))
            .collect()
    }

    /// Relative errors over those of one device.
    pub fn ratios(&self, results: &Results) -> [f64; 5] {
        let errors = self.errors(results);
        std::array::from_fn(|i| errors[i].relative / self.one_device[i].relative.max(1e-8))
    }
}

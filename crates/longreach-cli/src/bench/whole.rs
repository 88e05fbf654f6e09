//! One call of cuDNN on the whole sequence: what PEs are timed against on a GPU.

use crate::input::Sizes;
use longreach::{Error, Gpu, GpuTensor};
use longreach_device::cuda::{Memory, Stream};
use longreach_kernels::DType;
use longreach_kernels::cuda::cudnn::{
    self, Binding, Bound, Element, Handle, Plan, Problem, Rows, Scalar, TensorId,
};
use std::sync::Arc;

/// A forward and a backward over the whole sequence.
pub struct Whole {
    stream: Stream,
    handle: Handle,
    forward: (Plan, Vec<(TensorId, Binding)>),
    backward: (Plan, Vec<(TensorId, Binding)>),
    workspace: Memory,
    _inputs: [GpuTensor; 4],
    _memory: Vec<Memory>,
}

impl Whole {
    /// Causal or full attention of `q`, `k`, `v` with the gradient `dout`, which is like `q`.
    pub fn new(
        gpu: &Arc<Gpu>,
        sizes: &Sizes,
        causal: bool,
        scale: f64,
        inputs: [GpuTensor; 4],
    ) -> Result<Self, Error> {
        let stream = Stream::new(gpu)?;
        let handle = Handle::new(stream.raw())?;
        let [rows, q_heads, kv_heads, dim] =
            [sizes.q_len, sizes.q_heads, sizes.kv_heads, sizes.head_dim].map(|size| size as i64);
        let (q, kv) = (Rows::contiguous(rows, q_heads, dim), Rows::contiguous(rows, kv_heads, dim));
        let problem = Problem {
            batch: 1,
            q_heads,
            kv_heads,
            q_len: rows,
            kv_len: rows,
            head_dim: dim,
            value_dim: dim,
            element: if sizes.dtype == DType::F16 { Element::F16 } else { Element::Bf16 },
            q,
            k: kv,
            v: kv,
            o: q,
            d_o: q,
            bound: if causal { Bound { left: None, right: Some(0) } } else { Bound::FULL },
            deterministic: false,
        };
        let (f, b) = (cudnn::forward(&problem), cudnn::backward(&problem));
        let forward = Plan::new(&handle, &f.graph, "the whole forward", usize::MAX)?;
        let backward = Plan::new(&handle, &b.graph, "the whole backward", usize::MAX)?;
        let [q, k, v, d_o] = inputs.each_ref().map(|tensor| Binding::Memory(tensor.address()));
        let mut memory = Vec::new();
        let mut new = |elements: usize, size: usize| {
            let piece = Memory::new(gpu, elements * size)?;
            let address = piece.address();
            memory.push(piece);
            Ok::<_, Error>(Binding::Memory(address))
        };
        let lines = sizes.q_len * sizes.q_heads;
        let (q_len, kv_len) = (lines * sizes.head_dim, sizes.kv_len * sizes.kv_heads * sizes.head_dim);
        let (o, lse) = (new(q_len, 2)?, new(lines, 4)?);
        let scale = Binding::Value(Scalar::F32(scale as f32));
        let mut forwards = vec![(f.q, q), (f.k, k), (f.v, v), (f.o, o), (f.lse, lse), (f.scale, scale)];
        forwards.extend(f.mask.bindings(problem.bound));
        let one = Binding::Value(Scalar::F32(1.0));
        let mut backwards = vec![(b.q, q), (b.k, k), (b.v, v), (b.o, o), (b.d_o, d_o), (b.lse, lse)];
        backwards.extend([(b.scale, scale), (b.one, one), (b.row_sums, new(lines, 4)?)]);
        if let Some(id) = b.dq_sum {
            backwards.push((id, new(q_len, 4)?));
        }
        backwards.extend([(b.dq, new(q_len, 2)?), (b.dk, new(kv_len, 2)?), (b.dv, new(kv_len, 2)?)]);
        backwards.extend(b.mask.bindings(problem.bound));
        let workspace = Memory::new(gpu, forward.workspace().max(backward.workspace()))?;
        Ok(Self {
            stream,
            handle,
            forward: (forward, forwards),
            backward: (backward, backwards),
            workspace,
            _inputs: inputs,
            _memory: memory,
        })
    }

    /// Seconds of the GPU for a forward, and for a backward behind it.
    pub fn times(&mut self) -> Result<[f64; 2], Error> {
        let address = self.workspace.address();
        let start = self.stream.record()?;
        // SAFETY: the memory is of the problem's sizes and lives until the stream has been waited for.
        unsafe { self.forward.0.execute(&mut self.handle, &self.forward.1, address) }?;
        let middle = self.stream.record()?;
        // SAFETY: as above.
        unsafe { self.backward.0.execute(&mut self.handle, &self.backward.1, address) }?;
        let end = self.stream.record()?;
        end.synchronize()?;
        Ok([start.seconds_to(&middle)?, middle.seconds_to(&end)?])
    }
}

//! One call of cuDNN on the whole sequence.

use crate::buffer::{Buffer, DIM, KV_HEADS, Q_HEADS, scale};
use cudarc::driver::CudaStream;
use longreach_kernels::cuda::cudnn::{self, Binding, Bound, Element, Handle, Plan, Problem, Rows, Scalar};
use std::sync::Arc;

/// One call of cuDNN each way.
pub struct Whole {
    handle: Handle,
    forward: (Plan, Vec<(cudnn::TensorId, Binding)>),
    backward: (Plan, Vec<(cudnn::TensorId, Binding)>),
    workspace: u64,
    _buffers: Vec<Buffer>,
}

impl Whole {
    pub fn new(stream: &Arc<CudaStream>, len: usize) -> Self {
        let handle = Handle::new(stream).expect("cuDNN");
        let rows = |heads| Rows::contiguous(len as i64, heads as i64, DIM as i64);
        let (q, kv) = (rows(Q_HEADS), rows(KV_HEADS));
        let problem = Problem {
            batch: 1,
            q_heads: Q_HEADS as i64,
            kv_heads: KV_HEADS as i64,
            q_len: len as i64,
            kv_len: len as i64,
            head_dim: DIM as i64,
            value_dim: DIM as i64,
            element: Element::Bf16,
            q,
            k: kv,
            v: kv,
            o: q,
            d_o: q,
            bound: Bound { left: None, right: Some(0) },
            deterministic: false,
        };
        let (f, b) = (cudnn::forward(&problem), cudnn::backward(&problem));
        let forward = Plan::new(&handle, &f.graph, "the whole forward", usize::MAX).expect("a plan");
        let backward = Plan::new(&handle, &b.graph, "the whole backward", usize::MAX).expect("a plan");
        let (q_len, kv_len) = (len * Q_HEADS * DIM, len * KV_HEADS * DIM);
        let mut buffers = Vec::new();
        let mut keep = |buffer: Buffer| {
            let address = buffer.memory.address();
            buffers.push(buffer);
            Binding::Memory(address)
        };
        let normal = |len, seed| Buffer::normal(stream, len, seed);
        let new = |bytes| Buffer::new(stream, bytes);
        let (q, k, v) = (keep(normal(q_len, 91)), keep(normal(kv_len, 92)), keep(normal(kv_len, 93)));
        let (o, d_o, lse) = (keep(new(2 * q_len)), keep(normal(q_len, 94)), keep(new(4 * len * Q_HEADS)));
        let scale = Binding::Value(Scalar::F32(scale()));
        let mut forwards = vec![(f.q, q), (f.k, k), (f.v, v), (f.o, o), (f.lse, lse), (f.scale, scale)];
        forwards.extend(f.mask.bindings(problem.bound));
        let one = Binding::Value(Scalar::F32(1.0));
        let mut backwards = vec![(b.q, q), (b.k, k), (b.v, v), (b.o, o), (b.d_o, d_o), (b.lse, lse)];
        backwards.extend([(b.scale, scale), (b.one, one), (b.row_sums, keep(new(4 * len * Q_HEADS)))]);
        backwards.extend(b.dq_sum.map(|id| (id, keep(new(4 * q_len)))));
        let (dq, dk, dv) = (keep(new(2 * q_len)), keep(new(2 * kv_len)), keep(new(2 * kv_len)));
        backwards.extend([(b.dq, dq), (b.dk, dk), (b.dv, dv)]);
        backwards.extend(b.mask.bindings(problem.bound));
        let Binding::Memory(workspace) = keep(new(forward.workspace().max(backward.workspace()))) else {
            unreachable!("an address was kept")
        };
        Self {
            handle,
            forward: (forward, forwards),
            backward: (backward, backwards),
            workspace,
            _buffers: buffers,
        }
    }

    pub fn forward(&mut self) {
        let (plan, bindings) = &self.forward;
        // SAFETY: the buffers are of the problem's sizes and live.
        unsafe { plan.execute(&mut self.handle, bindings, self.workspace) }.expect("a forward");
    }

    pub fn backward(&mut self) {
        let (plan, bindings) = &self.backward;
        // SAFETY: as above.
        unsafe { plan.execute(&mut self.handle, bindings, self.workspace) }.expect("a backward");
    }
}

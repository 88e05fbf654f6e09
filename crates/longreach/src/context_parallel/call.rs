//! One call: its plan, sizes and description, the same on all PEs.

use crate::attention::Attention;
use crate::error::Error;
use crate::gpu_tensor::Input;
use crate::options::Options;
use longreach_device::{Kind, Label};
use longreach_kernels::DType;
use longreach_plan::{PePlan, Plan, Shape, Stage};
use longreach_shmem::Description;
use longreach_shmem::agreement::digest;
use std::sync::Arc;

/// Whether a call computes outputs or gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Outputs and log-sum-exps.
    Forward,
    /// Gradients of queries, keys and values.
    Backward,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

/// Sizes of a call's tensors that are the same on all PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Batch entries.
    pub batch: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads, a divisor of the query heads.
    pub kv_heads: usize,
    /// Elements of a query or key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Type of queries, keys and values.
    pub dtype: DType,
}

impl Dims {
    /// The dims of a call on such inputs; fails when they do not fit together.
    pub fn of<'a>(
        q: impl Into<Input<'a>>,
        k: impl Into<Input<'a>>,
        v: impl Into<Input<'a>>,
    ) -> Result<Self, Error> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let ([bq, _, hq, dq], [bk, sk, hk, dk], [bv, sv, hv, dv]) = (q.shape(), k.shape(), v.shape());
        let input = |text: String| Err(Error::Input(text));
        if q.dtype() != k.dtype() || q.dtype() != v.dtype() {
            return input(format!(
                "q is {}, k is {} and v is {}: all must be of one type",
                q.dtype(),
                k.dtype(),
                v.dtype()
            ));
        }
        if bq != bk || bq != bv {
            return input(format!(
                "q has {bq} batch entries, k has {bk} and v has {bv}: all must have the same"
            ));
        }
        if sk != sv || hk != hv {
            return input(format!(
                "k has {sk} rows of {hk} heads and v has {sv} of {hv}: both must have the same"
            ));
        }
        if dq != dk {
            return input(format!("q has head dimension {dq} and k has {dk}: both must have the same"));
        }
        if hk == 0 || hq == 0 || !hq.is_multiple_of(hk) {
            return input(format!(
                "q has {hq} heads and k has {hk}: the query heads must be a multiple of the key heads"
            ));
        }
        if dq == 0 || dv == 0 || bq == 0 {
            return input(format!(
                "q is {:?} and v is {:?}: batch and head dimensions must be at least 1",
                q.shape(),
                v.shape()
            ));
        }
        Ok(Self { batch: bq, q_heads: hq, kv_heads: hk, head_dim: dq, value_dim: dv, dtype: q.dtype() })
    }

    /// The sizes as the plan's cost model takes them.
    pub fn shape(&self) -> Shape {
        Shape {
            q_heads: self.q_heads as u64,
            kv_heads: self.kv_heads as u64,
            head_dim: self.head_dim as u64,
            value_dim: self.value_dim as u64,
            element_bytes: self.dtype.size() as u64,
        }
    }

    /// Elements of a key row, all heads.
    pub(super) fn k_row(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of a value row, all heads.
    pub(super) fn v_row(&self) -> usize {
        self.kv_heads * self.value_dim
    }
}

/// One call on this PE.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) epoch: u64,
    pub(super) direction: Direction,
    pub(super) plan: Arc<Plan>,
    pub(super) me: usize,
    pub(super) dims: Dims,
    pub(super) scale: f32,
    pub(super) description: Arc<Description>,
    pub(super) start: f64,
}

impl Call {
    pub(super) fn pe_plan(&self) -> &PePlan {
        &self.plan.pes[self.me]
    }

    pub(super) fn stage(&self, stage: usize) -> &Stage {
        &self.pe_plan().stages[stage]
    }

    /// Fetched stages: numbers 1..=this.
    pub(super) fn fetched(&self) -> usize {
        self.pe_plan().stages.len() - 1
    }

    /// Shapes of a stage's K and V.
    pub(super) fn kv_shapes(&self, stage: usize) -> [[usize; 4]; 2] {
        let rows = match stage {
            0 => self.pe_plan().kv_rows,
            _ => self.stage(stage).rows,
        };
        let Dims { batch, kv_heads, head_dim, value_dim, .. } = self.dims;
        [head_dim, value_dim].map(|dim| [batch, rows, kv_heads, dim])
    }

    /// Bytes of a PE's K and V.
    pub(super) fn kv_bytes(&self, pe: usize) -> [usize; 2] {
        let rows = self.plan.pes[pe].kv_rows * self.dims.batch;
        [self.dims.k_row(), self.dims.v_row()].map(|row| rows * row * self.dims.dtype.size())
    }

    /// Shape of the output.
    pub(super) fn out_shape(&self) -> [usize; 4] {
        let Dims { batch, q_heads, value_dim, .. } = self.dims;
        [batch, self.pe_plan().q_rows, q_heads, value_dim]
    }

    /// Rows of the carried state: those of all heads and batch entries.
    pub(super) fn state_rows(&self) -> usize {
        let [batch, rows, heads, _] = self.out_shape();
        batch * rows * heads
    }

    pub(super) fn label(&self, kind: Kind, stage: usize) -> Label {
        Label::new(kind, self.epoch, stage)
    }

    pub(super) fn operation(&self, name: &'static str, stage: usize) -> longreach_shmem::Operation {
        longreach_shmem::Operation { name, stage: Some(stage), epoch: self.epoch }
    }
}

/// What all PEs must have in common to make this call together.
pub(super) fn describe(
    epoch: u64,
    direction: Direction,
    attention: &Attention,
    dims: &Dims,
    scale: f32,
    options: &Options,
) -> Description {
    // Masks may be long: their text is shortened and its digest tells the rest.
    let mask = attention.mask.to_string();
    let short: String = mask.chars().take(1024).collect();
    let whole = digest(attention.mask.canonical().as_bytes());
    let layout = options.layout.to_string();
    let layout_digest = digest(layout.as_bytes());
    let layout: String = layout.chars().take(512).collect();
    // Within a bound on memory, what threads take decides how many stages there are.
    let threads = options.memory.map_or(0, |_| options.threads);
    Description::new()
        .field("operation", "attention")
        .field("direction", direction.name())
        .field("call", epoch)
        .field("mask", format!("{short} #{whole:016x}"))
        .field("layout", format!("{layout} #{layout_digest:016x}"))
        .field("query length", attention.q_len)
        .field("key length", attention.kv_len)
        .field("batch", dims.batch)
        .field("query heads", dims.q_heads)
        .field("key heads", dims.kv_heads)
        .field("head dimension", dims.head_dim)
        .field("value dimension", dims.value_dim)
        .field("dtype", dims.dtype)
        .field("scale", scale)
        .field("stages", format!("{:?}", options.stages))
        .field("memory", format!("{:?}", options.memory))
        .field("threads within the memory", threads)
        .field("return slots", options.return_slots)
        .field("publish slot", options.heap.publish)
        .field("return slot", options.heap.contribution)
        .field("device", options.device.kind())
        .field("get bandwidth", format!("{:?}", options.get_bandwidth))
}

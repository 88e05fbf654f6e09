//! Plans of this process: PEs that are threads of it make the same calls, and plan them once.

use super::call::Dims;
use super::heap::HEADER;
use super::room::UNDER_WAY;
use crate::attention::Attention;
use crate::error::Error;
use crate::options::{Device, Options, Stages};
use longreach_device::sync::process::{Mutex, OnceLock};
use longreach_plan::{Buffers, Layout, Mask, Model, Need, Plan, Request, choose_stages};
use std::sync::Arc;

/// Plans that are kept for calls that repeat.
const KEPT: usize = 16;

/// All that a plan depends on.
#[derive(Clone, PartialEq)]
struct Key {
    pes: usize,
    mask: Mask,
    q_len: usize,
    kv_len: usize,
    dims: Dims,
    layout: Layout,
    stages: Stages,
    memory: Option<u64>,
    buffers: Buffers,
    model: Model,
}

/// Bytes a second between GPUs of one machine, where nothing else is said.
const GPU_LINK: f64 = 3.5e11;

type Planned = Result<(Arc<Plan>, Need), Error>;

/// The most recent ones, newest last. What is not there yet is made by the first who asks; others wait for it.
static PLANS: Mutex<Vec<(Key, Arc<OnceLock<Planned>>)>> = Mutex::new(Vec::new());

/// The plan of a call and what it needs, from what all PEs know. Not collective.
pub fn plan(pes: usize, attention: &Attention, dims: &Dims, options: &Options) -> Planned {
    let key = Key {
        pes,
        mask: attention.mask.clone(),
        q_len: attention.q_len,
        kv_len: attention.kv_len,
        dims: *dims,
        layout: options.layout.clone(),
        stages: options.stages,
        memory: options.memory,
        buffers: Buffers {
            slots: UNDER_WAY as u64,
            return_slots: options.return_slots.max(1) as u64,
            header: HEADER as u64,
            scratch: scratch(dims, options),
        },
        model: model(options),
    };
    let entry = {
        let mut plans = PLANS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = plans.iter().position(|(kept, _)| *kept == key).map(|place| plans.remove(place).1);
        if plans.len() == KEPT {
            plans.remove(0);
        }
        let entry = found.unwrap_or_default();
        plans.push((key.clone(), entry.clone()));
        entry
    };
    entry.get_or_init(|| make(&key)).clone()
}

/// What work and transfers cost on the device.
fn model(options: &Options) -> Model {
    let usual = match options.device {
        Device::Cpu => Model::default(),
        Device::Cuda(_) => Model::gpu(GPU_LINK),
    };
    Model { bytes: options.get_bandwidth.unwrap_or(usual.bytes), ..usual }
}

/// Bytes of scratch that kernels take at most.
fn scratch(dims: &Dims, options: &Options) -> u64 {
    let bytes = match options.device {
        Device::Cuda(_) => options.workspace,
        Device::Cpu => {
            let Dims { q_heads, kv_heads, head_dim, value_dim, .. } = *dims;
            let thread = longreach_kernels::scratch(q_heads, kv_heads, head_dim, value_dim);
            thread.saturating_mul(options.threads.max(1))
        }
    };
    bytes as u64
}

fn make(key: &Key) -> Planned {
    let request = Request {
        batch: key.dims.batch,
        q_len: key.q_len,
        kv_len: key.kv_len,
        pes: key.pes,
        mask: key.mask.clone(),
        layout: key.layout.clone(),
        stages: 1,
    };
    let shape = key.dims.shape();
    let Stages::Exactly(stages) = key.stages else {
        let (plan, need) = choose_stages(&request, &shape, key.memory, &key.buffers, &key.model)?;
        return Ok((Arc::new(plan), need));
    };
    let plan = Plan::new(&Request { stages, ..request })?;
    let need = plan.need(&shape, &key.buffers)?;
    match key.memory {
        Some(bound) if need.total > bound => {
            Err(longreach_plan::Error::Memory { smallest: need.total, stages, bound }.into())
        }
        _ => Ok((Arc::new(plan), need)),
    }
}

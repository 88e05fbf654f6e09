//! Plans, printable, and the memory that they need.

use crate::attention::{Attention, parse};
use crate::engine::heap_for;
use crate::error::refused;
use longreach::{DType, Dims, HeapSize, Need, Options, Stages};
use pyo3::prelude::*;

/// Who fetches which rows when, and what a call needs.
#[pyclass(frozen, module = "longreach._longreach")]
pub struct Plan {
    inner: std::sync::Arc<longreach::Plan>,
    need: Need,
}

#[pymethods]
impl Plan {
    /// The plan of calls of `attention` on `pes` ranks. Not collective.
    #[new]
    #[pyo3(signature = (
        attention, *, pes, batch, q_heads, kv_heads, head_dim, value_dim, dtype, layout, threads, stages=None, memory=None
    ))]
    #[allow(clippy::too_many_arguments)] // a call's sizes, by keyword
    fn new(
        py: Python<'_>,
        attention: &Attention,
        pes: usize,
        batch: usize,
        q_heads: usize,
        kv_heads: usize,
        head_dim: usize,
        value_dim: usize,
        dtype: &str,
        layout: &str,
        threads: usize,
        stages: Option<usize>,
        memory: Option<u64>,
    ) -> PyResult<Self> {
        let dtype = [DType::F32, DType::F16, DType::Bf16]
            .into_iter()
            .find(|known| long_name(*known) == dtype)
            .ok_or_else(|| {
                refused(format!("dtype is {dtype}: float32, float16 and bfloat16 are supported"))
            })?;
        let dims = Dims { batch, q_heads, kv_heads, head_dim, value_dim, dtype };
        let stages = stages.map_or(Stages::Auto, Stages::Exactly);
        let options = Options { layout: parse(layout)?, stages, memory, threads, ..Options::default() };
        let planned = py.detach(|| longreach::plan(pes, &attention.inner, &dims, &options));
        let (inner, need) = planned.map_err(|error| refused(error.to_string()))?;
        Ok(Self { inner, need })
    }

    /// Bytes of a publish slot and of a return slot.
    #[getter]
    fn slots(&self) -> (usize, usize) {
        let size = HeapSize::of(&self.need);
        (size.publish, size.contribution)
    }

    /// What `heap=` must be for it at least, in bytes.
    #[getter]
    fn heap(&self) -> u64 {
        heap_for(HeapSize::of(&self.need))
    }

    /// Bytes on the rank that needs most, beyond inputs and outputs.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.need.total
    }

    /// The symmetric ones among them.
    #[getter]
    fn symmetric_bytes(&self) -> u64 {
        self.need.symmetric
    }

    /// Fetched stages, the most of any rank.
    #[getter]
    fn stages(&self) -> usize {
        self.inner.stages()
    }

    /// Rows that each rank fetches in a forward, over all batch rows.
    #[getter]
    fn rows_fetched(&self) -> Vec<u64> {
        self.inner.pes.iter().map(|plan| plan.rows_fetched()).collect()
    }

    /// Rows that a ring would move past all ranks.
    #[getter]
    fn ring_rows(&self) -> u64 {
        self.inner.ring_rows()
    }

    fn __str__(&self) -> String {
        format!("{}need: {}\n", self.inner, self.need)
    }
}

/// What PyTorch calls a type.
fn long_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
    }
}

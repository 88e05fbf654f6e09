//! INPUT: q, k and v with the defaults that the file carries.

use crate::args::MaskKind;
use crate::error::{Error, shown};
use crate::file::TensorFile;
use crate::tensors::Tensor;
use crate::values::{SCALES, scale};
use longreach_kernels::DType;
use std::path::Path;

/// What INPUT holds, checked.
#[derive(Debug)]
pub struct Input {
    /// `[B, Sq, Hq, Dqk]`.
    pub q: Tensor,
    /// `[B, Skv, Hkv, Dqk]`.
    pub k: Tensor,
    /// `[B, Skv, Hkv, Dv]`.
    pub v: Tensor,
    /// The file's own `dout`, kept unread: it is looked at only where a gradient is asked for.
    pub file: TensorFile,
    /// The sizes of the tensors.
    pub sizes: Sizes,
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Element type of q, k and v.
    pub dtype: DType,
    /// Batch rows.
    pub batch: usize,
    /// Query positions.
    pub q_len: usize,
    /// Key positions.
    pub kv_len: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a query and a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl Sizes {
    /// The output's shape.
    pub const fn out_shape(&self) -> [usize; 4] {
        [self.batch, self.q_len, self.q_heads, self.value_dim]
    }
}

impl Input {
    /// Reads INPUT.
    ///
    /// Fails when the file is broken or q, k and v do not fit each other.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = TensorFile::open("INPUT", path)?;
        if let Some(layout) = file.entry("layout").filter(|&layout| layout != "bshd") {
            return Err(file.bad(format!(
                "metadata layout is {}, expected bshd [batch, sequence, heads, dim]: transpose q, k and v",
                shown(layout)
            )));
        }
        let q = file.tensor("q", "[B, Sq, Hq, Dqk]")?;
        let k = file.tensor("k", "[B, Skv, Hkv, Dqk]")?;
        let v = file.tensor("v", "[B, Skv, Hkv, Dv]")?;
        let sizes = Self::sizes(&file, &q, &k, &v)?;
        Ok(Self { q, k, v, file, sizes })
    }

    fn sizes(file: &TensorFile, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Sizes, Error> {
        let dtype = q.dtype();
        for (name, tensor) in [("k", k), ("v", v)] {
            if tensor.dtype() != dtype {
                return Err(
                    file.bad(format!("tensor {name} has type {}, expected {dtype} as q has", tensor.dtype()))
                );
            }
        }
        let [batch, q_len, q_heads, head_dim] = q.shape();
        let [_, kv_len, kv_heads, _] = k.shape();
        let value_dim = v.shape()[3];
        for (name, tensor, expected) in
            [("k", k, [batch, kv_len, kv_heads, head_dim]), ("v", v, [batch, kv_len, kv_heads, value_dim])]
        {
            if tensor.shape() != expected {
                return Err(file.bad(format!(
                    "tensor {name} has shape {:?}, expected {expected:?} beside q {:?} and k {:?}",
                    tensor.shape(),
                    q.shape(),
                    k.shape()
                )));
            }
        }
        for (name, size) in [
            ("q has a batch", batch),
            ("q has a number of heads", q_heads),
            ("k has a number of heads", kv_heads),
            ("q has a head dimension", head_dim),
            ("v has a head dimension", value_dim),
        ] {
            if size == 0 {
                return Err(file.bad(format!("tensor {name} of 0, expected at least 1")));
            }
        }
        if !q_heads.is_multiple_of(kv_heads) {
            return Err(file.bad(format!(
                "q has {q_heads} heads and k has {kv_heads}: the heads of q must be a multiple of those of k"
            )));
        }
        Ok(Sizes { dtype, batch, q_len, kv_len, q_heads, kv_heads, head_dim, value_dim })
    }

    /// The mask that the file asks for.
    ///
    /// Fails when it is none that longreach knows.
    pub fn mask(&self) -> Result<Option<MaskKind>, Error> {
        match self.file.entry("mask") {
            None => Ok(None),
            Some("causal") => Ok(Some(MaskKind::Causal)),
            Some("full") => Ok(Some(MaskKind::Full)),
            Some(other) => Err(self.file.bad(format!(
                "metadata mask is {}, expected causal or full; --mask overrides it",
                shown(other)
            ))),
        }
    }

    /// The scale that the file asks for, else Dqk^-0.5.
    ///
    /// Fails when it is no finite number.
    pub fn scale(&self) -> Result<f64, Error> {
        let Some(text) = self.file.entry("scale") else {
            return Ok((self.sizes.head_dim as f64).powf(-0.5));
        };
        scale(text.trim()).ok_or_else(|| {
            let why = format!("metadata scale is {}, expected {SCALES}; --scale overrides it", shown(text));
            self.file.bad(why)
        })
    }
}

//! The one definition of accuracy: errors of float32 results, before output rounding, against float64.
//!
//! `relative = ||x - ref|| / max(||ref||, 1e-6 ||bound||)`. Rows that see no key (reference log-sum-exp -inf)
//! must be exactly (0, -inf) and leave the norms. A result that is not finite has an infinite error, so that
//! no comparison passes by way of a NaN.

use super::{Backward, Exact, Forward, Mismatch, expect};
use crate::options::Device;
use longreach_kernels::DType;

/// What errors of one tensor may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// One device must be at least this close to float64.
    pub one_device: f64,
    /// Several PEs may have this multiple of the one-device error,
    pub ratio: f64,
    /// and this much more.
    pub slack: f64,
}

impl Rule {
    /// On a CPU, whatever the inputs' type. The slack is about the rounding of one float32 operation.
    pub const CPU: Self = Self { one_device: 5e-6, ratio: 1.1, slack: 2e-7 };

    /// Whether errors are within the rule, given the relative error of the same call on one device.
    pub fn passes(&self, errors: Errors, one_device_relative: f64) -> bool {
        // Written so that a NaN anywhere fails: each comparison must be true.
        one_device_relative <= self.one_device && self.keeps_up(errors, one_device_relative)
    }

    /// Whether errors are as small as those of one device allow.
    pub fn keeps_up(&self, errors: Errors, one_device_relative: f64) -> bool {
        errors.relative <= self.ratio * one_device_relative + self.slack
    }
}

/// The rules of a call's tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// For the output.
    pub forward: Rule,
    /// For the log-sum-exp.
    pub lse: Rule,
    /// For dq, dk and dv.
    pub gradients: Rule,
}

impl Accuracy {
    /// The rules on `device` for inputs of `dtype`. On a GPU the library's kernels multiply in the inputs' type and give
    /// their results in it; several calls of them add up to no more than one, but for gradients, whose parts are rounded.
    pub fn of(device: Device, dtype: DType) -> Self {
        if device == Device::Cpu {
            return Self { forward: Rule::CPU, lse: Rule::CPU, gradients: Rule::CPU };
        }
        // A few roundings: the type's unit is 2^-8 for bf16 and 2^-11 for f16.
        let one_device = if dtype == DType::F16 { 2e-3 } else { 1.2e-2 };
        Self {
            forward: Rule { one_device, ratio: 1.1, slack: 2e-7 },
            lse: Rule { one_device: 5e-6, ratio: 1.1, slack: 2e-6 },
            gradients: Rule { one_device, ratio: 1.3, slack: 2e-7 },
        }
    }
}

/// How far a tensor is from its reference; infinite where it is not finite or a row without keys is not empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Norm of the difference over the norm of the reference.
    pub relative: f64,
}

impl Errors {
    const WRONG: Self = Self { max_abs: f64::INFINITY, relative: f64::INFINITY };
}

impl Forward {
    /// Errors of an output `[batch, q_len, q_heads, value_dim]`.
    ///
    /// Fails when `out` has another number of elements.
    pub fn out_errors(&self, out: &[f32]) -> Result<Errors, Mismatch> {
        self.errors_by_row("the number of elements of out", out, &self.out, self.shape[3])
    }

    /// Errors of a log-sum-exp `[batch, q_heads, q_len]`.
    ///
    /// Fails when `lse` has another number of elements.
    pub fn lse_errors(&self, lse: &[f32]) -> Result<Errors, Mismatch> {
        expect("the number of elements of lse", lse.len(), self.lse.values.len())?;
        let exact = &self.lse;
        let mut norms = Norms::default();
        for ((&x, &value), &bound) in lse.iter().zip(&exact.values).zip(&exact.bounds) {
            if value != f64::NEG_INFINITY {
                norms.add(x, value, bound);
            } else if x != f32::NEG_INFINITY {
                norms.wrong = true;
            }
        }
        Ok(norms.errors())
    }

    /// Errors of a gradient `[batch, q_len, q_heads, head_dim]`; rows that see no key must be exactly 0.
    ///
    /// Fails when `dq` has another number of elements.
    pub fn dq_errors(&self, dq: &[f32], reference: &Backward) -> Result<Errors, Mismatch> {
        let rows: usize = self.shape[..3].iter().product();
        let dim = reference.dq.values.len().checked_div(rows).unwrap_or(0);
        self.errors_by_row("the number of elements of dq", dq, &reference.dq, dim)
    }

    fn errors_by_row(
        &self,
        what: &'static str,
        x: &[f32],
        exact: &Exact,
        dim: usize,
    ) -> Result<Errors, Mismatch> {
        expect(what, x.len(), exact.values.len())?;
        let [_, q_len, heads, _] = self.shape;
        let mut norms = Norms::default();
        for (at, &x) in x.iter().enumerate() {
            // A row of out is (batch, position, head); a row of lse is (batch, head, position).
            let row = at / dim;
            let (batch, position, head) = (row / heads / q_len, row / heads % q_len, row % heads);
            if self.lse.values[(batch * heads + head) * q_len + position] != f64::NEG_INFINITY {
                norms.add(x, exact.values[at], exact.bounds[at]);
            } else if x != 0.0 {
                norms.wrong = true;
            }
        }
        Ok(norms.errors())
    }
}

impl Backward {
    /// Errors of a gradient `[batch, kv_len, kv_heads, head_dim]`.
    ///
    /// Fails when `dk` has another number of elements.
    pub fn dk_errors(&self, dk: &[f32]) -> Result<Errors, Mismatch> {
        errors("the number of elements of dk", dk, &self.dk)
    }

    /// Errors of a gradient `[batch, kv_len, kv_heads, value_dim]`.
    ///
    /// Fails when `dv` has another number of elements.
    pub fn dv_errors(&self, dv: &[f32]) -> Result<Errors, Mismatch> {
        errors("the number of elements of dv", dv, &self.dv)
    }
}

fn errors(what: &'static str, x: &[f32], exact: &Exact) -> Result<Errors, Mismatch> {
    expect(what, x.len(), exact.values.len())?;
    let mut norms = Norms::default();
    for ((&x, &value), &bound) in x.iter().zip(&exact.values).zip(&exact.bounds) {
        norms.add(x, value, bound);
    }
    Ok(norms.errors())
}

/// Squared norms of the difference, the reference and the bound.
#[derive(Default)]
struct Norms {
    difference: f64,
    reference: f64,
    bound: f64,
    max_abs: f64,
    wrong: bool,
}

impl Norms {
    fn add(&mut self, x: f32, value: f64, bound: f64) {
        let difference = f64::from(x) - value;
        self.wrong |= !difference.is_finite();
        self.difference += difference * difference;
        self.reference += value * value;
        self.bound += bound * bound;
        self.max_abs = self.max_abs.max(difference.abs());
    }

    fn errors(&self) -> Errors {
        if self.wrong {
            return Errors::WRONG;
        }
        let scale = self.reference.sqrt().max(1e-6 * self.bound.sqrt());
        let difference = self.difference.sqrt();
        // Nothing to differ from and no difference: an empty tensor, or zeros where all summands are zero.
        let relative = if difference == 0.0 { 0.0 } else { difference / scale };
        Errors { max_abs: self.max_abs, relative: if relative.is_nan() { f64::INFINITY } else { relative } }
    }
}

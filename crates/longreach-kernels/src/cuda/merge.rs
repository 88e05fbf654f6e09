//! What is done once a row: a fresh state, finishing, rounding.

use super::context::Context;
use super::cudnn::Element;
use super::memory::{Memory, View};
use super::operand::element;
use super::rows::{Extent, Move, Rows4};
use super::state::State;
use super::sum::{Sum, settle};
use crate::error::Error;
use crate::tensor::DType;

/// Makes every row of a state the identity: a row that has seen no key.
pub fn reset(cx: &Context, state: &mut State) -> Result<(), Error> {
    cx.ready()?;
    state.held.clear();
    state.element = None;
    let [batch, rows, heads, _] = state.shape;
    let count = batch * rows * heads;
    // SAFETY: the state was checked to have as many rows; its memory is valid, as its maker promised.
    unsafe {
        cx.kernels.fill(state.max.address(), f32::NEG_INFINITY, count)?;
        cx.kernels.fill(state.sum.address(), 0.0, count)
    }
}

/// Queues the normalisation of a carried state into `out` `[batch, query rows, query heads, dim of v]`, of float32 or the
/// inputs' type, and the log-sum-exp into `lse`, float32 `[batch, query heads, query rows]`. The state stays as it is.
///
/// A row that has seen no key gives exactly 0 and -inf.
pub fn finish(cx: &Context, state: &State, out: &View, lse: Memory) -> Result<(), Error> {
    cx.ready()?;
    let [batch, rows, heads, dim] = out.shape();
    if out.shape() != state.shape {
        let needs = format!("the state has {:?}", state.shape);
        return Err(Error::Shape { what: "out", given: out.shape(), needs });
    }
    lse.check_f32("lse", &[batch, heads, rows])?;
    check_rows("out", out)?;
    if out.shape().contains(&0) {
        return Ok(());
    }
    let float = out.dtype() == DType::F32;
    let own = if float { None } else { Some(element(&[("out", out)])?) };
    if own.is_some() && state.element.is_some() && own != state.element {
        let given = out.dtype().name();
        return Err(Error::Refused(format!(
            "out of type {given}: a state gives float32 or the inputs' type"
        )));
    }
    // Of a state without parts any will do.
    let element = state.element.or(own).unwrap_or(Element::Bf16);
    let to = Rows4 { address: out.at(0, 0, 0), strides: out.strides() };
    let extent = Extent { batches: batch, heads, dim };
    // SAFETY: sizes have been checked; the memory is valid, as its maker promised.
    unsafe { cx.kernels.finish(element, float, state.addresses(), (to, lse.address()), rows, extent) }
}

/// Queues the rounding of a sum to the view `to`, of bf16 or f16 and the same shape; first zeros where nothing was added.
pub fn cast(cx: &Context, from: &mut Sum, to: &View) -> Result<(), Error> {
    settle(cx, from)?;
    let [batches, rows, heads, dim] = to.shape();
    from.check("the tensor to cast", to.shape())?;
    check_rows("the tensor to cast to", to)?;
    let element = element(&[("the tensor to cast to", to)])?;
    let from = Rows4::contiguous(from.memory.address(), rows, heads, dim);
    let to = Rows4 { address: to.at(0, 0, 0), strides: to.strides() };
    // SAFETY: sizes have been checked; the memory is valid, as its maker promised.
    unsafe { cx.kernels.rows(Move::Cast(element), from, to, &[(0, 0, rows)], Extent { batches, heads, dim }) }
}

/// Outputs are written 16 bytes at a time.
pub(super) fn check_rows(what: &str, view: &View) -> Result<(), Error> {
    let dim = view.shape()[3];
    if view.shape().contains(&0) {
        return Ok(());
    }
    if !view.is_aligned() || !dim.is_multiple_of(8) || dim > 1024 {
        return Err(Error::Refused(format!(
            "{what} of shape {:?} with strides {:?}: rows of a multiple of 8 columns, at most 1024, each from a 16-byte boundary on",
            view.shape(),
            view.strides()
        )));
    }
    Ok(())
}

//! Where a call of cuDNN reads the rows of an operand: in place, or side by side in scratch.

use super::calls::Call;
use super::context::Context;
use super::cudnn::{Element, Problem, Rows};
use super::memory::{Room, View};
use super::rows::{Extent, Move, Rows4, gathered};
use crate::error::Error;
use crate::shapes::Shapes;
use crate::tensor::DType;
use std::ops::Range;

/// Rows of an operand as one call reads them.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    /// Address of the first element.
    pub address: u64,
    /// Strides.
    pub rows: Rows,
    /// What must be copied there first.
    copy: Option<Copy>,
}

#[derive(Clone, Debug)]
struct Copy {
    aligned: bool,
    from: Rows4,
    pieces: Vec<Range<usize>>,
    extent: Extent,
}

impl Operand {
    /// Rows `pieces` of `view` one after another, of these batch entries and heads.
    pub fn new(
        view: &View,
        batch: &Range<usize>,
        heads: &Range<usize>,
        pieces: &[Range<usize>],
        room: &mut Room,
    ) -> Result<Self, Error> {
        let dim = view.shape()[3];
        let extent = Extent { batches: batch.len(), heads: heads.len(), dim };
        let len: usize = pieces.iter().map(Range::len).sum();
        let [sb, ss, sh, _] = view.strides();
        if let ([piece], true) = (pieces, view.is_aligned()) {
            // A stride that nothing follows is the contiguous one, so that plans do not differ by it.
            let head = if heads.len() == 1 { dim } else { sh };
            let row = if len == 1 { head * heads.len() } else { ss };
            let batch_stride = if batch.len() == 1 { row * len } else { sb };
            let [batch_stride, row, head] = [batch_stride, row, head].map(|stride| stride as i64);
            let rows = Rows { batch: batch_stride, row, head };
            let address = view.at(batch.start, piece.start, heads.start);
            return Ok(Self { address, rows, copy: None });
        }
        let address = room.take("gathered rows", &[batch.len(), len, heads.len(), dim], 2)?;
        let rows = Rows::contiguous(len as i64, heads.len() as i64, dim as i64);
        let from = Rows4 { address: view.at(batch.start, 0, heads.start), strides: view.strides() };
        let copy = Copy { aligned: view.is_aligned(), from, pieces: pieces.to_vec(), extent };
        Ok(Self { address, rows, copy: Some(copy) })
    }

    /// Queues the copy, if there is one.
    ///
    /// # Safety
    /// The address must be within memory that the work may write until it has run.
    pub unsafe fn gather(&self, cx: &Context) -> Result<(), Error> {
        let Some(Copy { aligned, from, pieces, extent }) = &self.copy else { return Ok(()) };
        let to = |stride: i64| stride as usize;
        let strides = [to(self.rows.batch), to(self.rows.row), to(self.rows.head), 1];
        let to = Rows4 { address: self.address, strides };
        let what = if *aligned { Move::Copy } else { Move::CopyStrided };
        // SAFETY: the view has the pieces' rows; `to` is the caller's promise, of the size that was taken.
        unsafe { cx.kernels.rows(what, *from, to, &gathered(pieces), *extent) }
    }
}

/// The element type that all views of a call have.
pub(super) fn element(views: &[(&'static str, &View)]) -> Result<Element, Error> {
    let wrong = |(what, view): &(&str, &View), why: String| {
        Err(Error::Refused(format!("{what} of type {}: {why}", view.dtype().name())))
    };
    let first = &views[0];
    let element = match first.1.dtype() {
        DType::Bf16 => Element::Bf16,
        DType::F16 => Element::F16,
        DType::F32 => return wrong(first, "attention on a GPU takes bf16 and f16; cast it".to_owned()),
    };
    match views.iter().find(|(_, view)| view.dtype() != first.1.dtype()) {
        Some(other) => wrong(other, format!("{} is {}; pass one type", first.0, first.1.dtype().name())),
        None => Ok(element),
    }
}

/// Query heads of a call.
pub(super) fn q_heads(call: &Call, group: usize) -> Range<usize> {
    call.kv_heads.start * group..call.kv_heads.end * group
}

/// The key rows of a call as cuDNN gets them, and its problem but for strides.
///
/// cuDNN refuses one query with one key; such a key is given twice and the second hidden.
pub(super) fn problem(
    call: &Call,
    shapes: &Shapes,
    element: Element,
    deterministic: bool,
) -> (Vec<Range<usize>>, Problem) {
    let mut kv = call.kv.clone();
    let mut bound = call.bound;
    if call.q.len() == 1 && call.keys() == 1 {
        kv.extend(call.kv.clone());
        bound.right = Some(0);
    }
    let len: usize = kv.iter().map(Range::len).sum();
    let any = Rows { batch: 0, row: 0, head: 0 };
    let problem = Problem {
        batch: call.batch.len() as i64,
        q_heads: q_heads(call, shapes.group).len() as i64,
        kv_heads: call.kv_heads.len() as i64,
        q_len: call.q.len() as i64,
        kv_len: len as i64,
        head_dim: shapes.dim_qk as i64,
        value_dim: shapes.dim_v as i64,
        element,
        q: any,
        k: any,
        v: any,
        o: any,
        d_o: any,
        bound,
        deterministic,
    };
    (kv, problem)
}

//! Attention's sizes and masks, as one call of cuDNN takes them.

use super::graph::{Graph, Operation, Pointwise, TensorId, Type};
use super::plan::{Binding, Scalar};
use crate::error::Error;

/// Element type of q, k, v and the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// bfloat16.
    Bf16,
    /// 16-bit IEEE float.
    F16,
}

impl Element {
    /// The graph's name of it.
    pub const fn of_graph(self) -> Type {
        match self {
            Element::Bf16 => Type::Bf16,
            Element::F16 => Type::F16,
        }
    }
}

/// Strides of an operand in elements: batch, row, head. Columns lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// From a batch row to the next.
    pub batch: i64,
    /// From a token to the next.
    pub row: i64,
    /// From a head to the next.
    pub head: i64,
}

impl Rows {
    /// Of `[batch, rows, heads, columns]` without gaps.
    pub fn contiguous(rows: i64, heads: i64, columns: i64) -> Self {
        Self { batch: rows * heads * columns, row: heads * columns, head: columns }
    }
}

/// Which keys a query sees: row i of the call sees key j where `j <= i + right`, and `j >= i - left`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// Keys behind the query's own diagonal; none is no bound.
    pub left: Option<i64>,
    /// Keys ahead of it; none is no bound.
    pub right: Option<i64>,
}

impl Bound {
    /// Everything.
    pub const FULL: Self = Self { left: None, right: None };
}

/// One call: sizes, strides and mask. Every row of it must see a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Batch entries.
    pub batch: i64,
    /// Query heads, a multiple of the key heads.
    pub q_heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Query rows.
    pub q_len: i64,
    /// Key rows.
    pub kv_len: i64,
    /// Elements of a query or key.
    pub head_dim: i64,
    /// Elements of a value.
    pub value_dim: i64,
    /// Type of all but float32 tensors.
    pub element: Element,
    /// Strides of q.
    pub q: Rows,
    /// Strides of k.
    pub k: Rows,
    /// Strides of v.
    pub v: Rows,
    /// Strides of o.
    pub o: Rows,
    /// Strides of do, for the backward. Gradients are contiguous.
    pub d_o: Rows,
    /// Who sees what.
    pub bound: Bound,
    /// Whether the backward must give the same bits each time, which costs a workspace of two bytes a score.
    pub deterministic: bool,
}

impl Problem {
    /// Fails for what cuDNN is known not to compute on a Hopper GPU, or to compute wrong.
    pub fn check(&self) -> Result<(), Error> {
        let Self { q_heads, kv_heads, q_len, kv_len, head_dim, value_dim, bound, .. } = *self;
        let wrong = |text: String| Err(Error::Refused(text));
        if [self.batch, q_heads, kv_heads, q_len, kv_len].iter().any(|&size| size < 1) {
            return wrong(format!("a call of {self:?} has nothing to compute: leave it out"));
        }
        if q_heads % kv_heads != 0 {
            return wrong(format!("{q_heads} query heads are no multiple of {kv_heads} key heads"));
        }
        [head_dim, value_dim].into_iter().try_for_each(check_dim)?;
        if q_len == 1 && kv_len == 1 {
            return wrong("cuDNN refuses one query with one key: add a row".to_owned());
        }
        let (first, last) = (0, q_len - 1);
        let sees = |row: i64| {
            let low = bound.left.map_or(0, |left| (row - left).max(0));
            let high = bound.right.map_or(kv_len - 1, |right| (row + right).min(kv_len - 1));
            low <= high
        };
        if !sees(first) || !sees(last) {
            return wrong(format!("a row of {self:?} sees no key: trim it"));
        }
        Ok(())
    }

    pub(super) fn dims(&self, rows: i64, heads: i64, columns: i64) -> [i64; 4] {
        [self.batch, heads, rows, columns]
    }

    pub(super) fn of_rows(&self) -> [i64; 4] {
        self.dims(self.q_len, self.q_heads, 1)
    }
}

/// Refuses a head dimension that cuDNN does not take.
pub(in crate::cuda) fn check_dim(dim: i64) -> Result<(), Error> {
    if dim % 8 == 0 && (8..=256).contains(&dim) {
        return Ok(());
    }
    Err(Error::Refused(format!("head dimension {dim}: cuDNN takes multiples of 8 up to 256; pad with zeros")))
}

/// Strides in the graph's order of dimensions: batch, head, row, column.
pub(super) const fn strides(rows: Rows) -> [i64; 4] {
    [rows.batch, rows.head, rows.row, 1]
}

/// As [`strides`], of the transpose.
pub(super) const fn transposed(rows: Rows) -> [i64; 4] {
    [rows.batch, rows.head, 1, rows.row]
}

/// The numbers that a mask needs at each execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskValues {
    right: Option<RightEdge>,
    left: Option<LeftEdge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RightEdge {
    masked: TensorId,
    /// How far the edge is ahead of the diagonal; none where it is not.
    shift: Option<TensorId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeftEdge {
    masked: TensorId,
    /// How many keys behind the diagonal are seen, and one more.
    shift: TensorId,
}

impl MaskValues {
    /// What they are for `bound`, the one that the graph was made for.
    pub fn bindings(&self, bound: Bound) -> Vec<(TensorId, Binding)> {
        let float = |id: TensorId, value: f32| (id, Binding::Value(Scalar::F32(value)));
        let mut found = Vec::new();
        if let Some((RightEdge { masked, shift }, right)) = self.right.zip(bound.right) {
            found.push(float(masked, f32::NEG_INFINITY));
            let right = i32::try_from(right).unwrap_or(i32::MAX);
            found.extend(shift.map(|id| (id, Binding::Value(Scalar::I32(right)))));
        }
        if let Some((LeftEdge { masked, shift }, left)) = self.left.zip(bound.left) {
            // The edge is compared with `>`, so it is one more.
            found.extend([float(masked, f32::NEG_INFINITY), float(shift, (left + 1) as f32)]);
        }
        found
    }
}

/// Adds the mask to `scores`: what is not seen becomes minus infinity.
///
/// cuDNN recognises the pattern only as its own frontend writes it: an edge has indices and an infinity of its own, and
/// the left one is computed in float32.
pub(super) fn mask(graph: &mut Graph, scores: TensorId, bound: Bound) -> (TensorId, MaskValues) {
    let mut values = MaskValues::default();
    let mut scores = scores;
    if let Some(right) = bound.right {
        // row + right >= column.
        let row = graph.pointwise(Pointwise::Index(2), "row", scores, None, Type::I32);
        let column = graph.pointwise(Pointwise::Index(3), "column", scores, None, Type::I32);
        let shift = (right != 0).then(|| graph.value("right", Type::I32));
        let edge = match shift {
            Some(shift) => graph.pointwise(Pointwise::Add, "right edge", row, Some(shift), Type::I32),
            None => row,
        };
        let seen = graph.pointwise(Pointwise::AtLeast, "seen", edge, Some(column), Type::Bool);
        let masked = graph.value("minus infinity", Type::F32);
        scores = select(graph, scores, masked, seen);
        values.right = Some(RightEdge { masked, shift });
    }
    if bound.left.is_some() {
        // column + left + 1 > row.
        let row = graph.pointwise(Pointwise::Index(2), "row", scores, None, Type::F32);
        let column = graph.pointwise(Pointwise::Index(3), "column", scores, None, Type::F32);
        let shift = graph.value("left", Type::F32);
        let edge = graph.pointwise(Pointwise::Add, "left edge", column, Some(shift), Type::F32);
        let seen = graph.pointwise(Pointwise::Greater, "seen", edge, Some(row), Type::Bool);
        let masked = graph.value("minus infinity", Type::F32);
        scores = select(graph, scores, masked, seen);
        values.left = Some(LeftEdge { masked, shift });
    }
    (scores, values)
}

fn select(graph: &mut Graph, scores: TensorId, masked: TensorId, seen: TensorId) -> TensorId {
    let y = graph.temporary("masked scores", graph.tensors[scores.0].dims, Type::F32);
    let (x, b, t) = (scores, Some(masked), Some(seen));
    graph.operations.push(Operation::Pointwise { mode: Pointwise::Select, x, b, t, y });
    y
}

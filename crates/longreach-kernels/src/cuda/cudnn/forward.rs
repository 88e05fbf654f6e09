//! The forward's graph: output and log-sum-exp.

use super::attention::{MaskValues, Problem, mask, strides, transposed};
use super::graph::{Graph, Pointwise, Reduction, TensorId, Type};

/// The forward's graph, and what the caller gives and gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The graph.
    pub graph: Graph,
    /// Queries.
    pub q: TensorId,
    /// Keys.
    pub k: TensorId,
    /// Values.
    pub v: TensorId,
    /// Factor of the scores.
    pub scale: TensorId,
    /// Output, in the operands' type: in float32 cuDNN 9.19 takes the graph and computes something else.
    pub o: TensorId,
    /// Natural log of the sum of exponentials of a row, float32 `[batch, query heads, query rows]`.
    pub lse: TensorId,
    /// The mask's numbers.
    pub mask: MaskValues,
}

/// Writes attention as a graph: softmax(scale q k^T, masked) v.
pub fn forward(problem: &Problem) -> Forward {
    let Problem { q_heads, kv_heads, q_len, kv_len, head_dim, value_dim, element, bound, .. } = *problem;
    let io = element.of_graph();
    let mut graph = Graph::default();
    let g = &mut graph;
    let q = g.memory("q", problem.dims(q_len, q_heads, head_dim), strides(problem.q), io);
    let k = g.memory("k", problem.dims(head_dim, kv_heads, kv_len), transposed(problem.k), io);
    let v = g.memory("v", problem.dims(kv_len, kv_heads, value_dim), strides(problem.v), io);
    let scale = g.value("scale", Type::F32);

    let scores = g.matmul("scores", q, k, Type::F32);
    let scaled = g.pointwise(Pointwise::Mul, "scaled scores", scores, Some(scale), Type::F32);
    let (masked, values) = mask(g, scaled, bound);

    let largest = g.temporary("row maximum", problem.of_rows(), Type::F32);
    g.reduce_into(Reduction::Max, masked, largest);
    let shifted = g.pointwise(Pointwise::Sub, "shifted scores", masked, Some(largest), Type::F32);
    let weights = g.pointwise(Pointwise::Exp, "weights", shifted, None, Type::F32);
    let sum = g.temporary("row sum", problem.of_rows(), Type::F32);
    g.reduce_into(Reduction::Add, weights, sum);
    let log = g.pointwise(Pointwise::Log, "log of the row sum", sum, None, Type::F32);
    let rows = problem.of_rows();
    let lse = g.memory("lse", rows, super::graph::packed(rows), Type::F32);
    g.pointwise_into(Pointwise::Add, largest, Some(log), lse);
    let p = g.pointwise(Pointwise::Div, "probabilities", weights, Some(sum), io);

    let o = g.memory("o", problem.dims(q_len, q_heads, value_dim), strides(problem.o), io);
    g.matmul_into(p, v, o);
    Forward { graph, q, k, v, scale, o, lse, mask: values }
}

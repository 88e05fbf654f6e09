//! The backward's graph: gradients of q, k and v from the output's.
//!
//! With o and lse of the whole attention, over all keys, the call gives the exact part of the gradients that belongs to
//! its keys: probabilities are exp(scores - lse).

use super::attention::{MaskValues, Problem, Rows, mask, strides, transposed};
use super::graph::{Graph, Pointwise, Reduction, TensorId, Type, packed};

/// The backward's graph, and what the caller gives and gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backward {
    /// The graph.
    pub graph: Graph,
    /// Queries.
    pub q: TensorId,
    /// Keys.
    pub k: TensorId,
    /// Values.
    pub v: TensorId,
    /// The whole attention's output.
    pub o: TensorId,
    /// Its gradient.
    pub d_o: TensorId,
    /// The whole attention's log-sum-exp, as the forward writes it.
    pub lse: TensorId,
    /// Factor of the scores.
    pub scale: TensorId,
    /// The number 1: cuDNN's pattern has a factor here, dropout's.
    pub one: TensorId,
    /// Room for the sums of rows of o do: float32 `[batch, query heads, query rows]`.
    pub row_sums: TensorId,
    /// Room for dq in float32 `[batch, query heads, query rows, head_dim]`; a deterministic backward needs none.
    pub dq_sum: Option<TensorId>,
    /// Gradient of q, contiguous `[batch, query rows, query heads, head_dim]`.
    pub dq: TensorId,
    /// Gradient of k, contiguous `[batch, key rows, key heads, head_dim]`.
    pub dk: TensorId,
    /// Gradient of v, contiguous `[batch, key rows, key heads, value_dim]`.
    pub dv: TensorId,
    /// The mask's numbers.
    pub mask: MaskValues,
}

/// Writes the gradients as a graph.
pub fn backward(problem: &Problem) -> Backward {
    let Problem { q_heads, kv_heads, q_len, kv_len, head_dim, value_dim, element, bound, .. } = *problem;
    let gradient = |rows, heads, columns| strides(Rows::contiguous(rows, heads, columns));
    let io = element.of_graph();
    let mut graph = Graph::default();
    let g = &mut graph;
    let q = g.memory("q", problem.dims(q_len, q_heads, head_dim), strides(problem.q), io);
    let k = g.memory("k", problem.dims(head_dim, kv_heads, kv_len), transposed(problem.k), io);
    let v = g.memory("v", problem.dims(value_dim, kv_heads, kv_len), transposed(problem.v), io);
    let o = g.memory("o", problem.dims(q_len, q_heads, value_dim), strides(problem.o), io);
    let d_o = g.memory("do", problem.dims(q_len, q_heads, value_dim), strides(problem.d_o), io);
    let rows = problem.of_rows();
    let lse = g.memory("lse", rows, packed(rows), Type::F32);
    let scale = g.value("scale", Type::F32);
    let one = g.value("one", Type::F32);

    let products = g.pointwise(Pointwise::Mul, "o do", d_o, Some(o), Type::F32);
    let sums = g.temporary("row sums of o do", rows, Type::F32);
    g.reduce_into(Reduction::Add, products, sums);
    let row_sums = g.memory("row sums", rows, packed(rows), Type::F32);
    g.pointwise_into(Pointwise::Mul, sums, Some(one), row_sums);

    let scores = g.matmul("scores", q, k, Type::F32);
    let scaled = g.pointwise(Pointwise::Mul, "scaled scores", scores, Some(scale), Type::F32);
    // cuDNN's pattern subtracts before it masks.
    let shifted = g.pointwise(Pointwise::Sub, "shifted scores", scaled, Some(lse), Type::F32);
    let (masked, values) = mask(g, shifted, bound);
    let p = g.pointwise(Pointwise::Exp, "probabilities", masked, None, Type::F32);

    let p_transposed = g.transpose("transposed probabilities", p, io);
    let dv_dims = problem.dims(kv_len, kv_heads, value_dim);
    let dv = g.memory("dv", dv_dims, gradient(kv_len, kv_heads, value_dim), io);
    of_heads(g, "dv of query heads", p_transposed, d_o, dv, problem);

    let dp = g.matmul("dp", d_o, v, Type::F32);
    let centred = g.pointwise(Pointwise::Sub, "centred dp", dp, Some(row_sums), Type::F32);
    let weighted = g.pointwise(Pointwise::Mul, "weighted dp", centred, Some(p), Type::F32);
    let ds = g.pointwise(Pointwise::Mul, "ds", weighted, Some(scale), Type::F32);

    let ds_transposed = g.transpose("transposed ds", ds, io);
    let dk_dims = problem.dims(kv_len, kv_heads, head_dim);
    let dk = g.memory("dk", dk_dims, gradient(kv_len, kv_heads, head_dim), io);
    of_heads(g, "dk of query heads", ds_transposed, q, dk, problem);

    let keys = g.transpose("keys", k, Type::F32);
    let dq_dims = problem.dims(q_len, q_heads, head_dim);
    let dq = g.memory("dq", dq_dims, gradient(q_len, q_heads, head_dim), io);
    // A sum in memory asks for the engine in which blocks of keys add to it in any order.
    let dq_sum = if problem.deterministic {
        g.matmul_into(ds, keys, dq);
        None
    } else {
        let sum = g.memory("dq in float32", dq_dims, packed(dq_dims), Type::F32);
        g.matmul_into(ds, keys, sum);
        g.pointwise_into(Pointwise::Identity, sum, None, dq);
        Some(sum)
    };
    Backward { graph, q, k, v, o, d_o, lse, scale, one, row_sums, dq_sum, dq, dk, dv, mask: values }
}

/// A product of each query head, summed over those that share a key head.
fn of_heads(
    g: &mut Graph,
    name: &'static str,
    a: TensorId,
    b: TensorId,
    result: TensorId,
    problem: &Problem,
) {
    if problem.q_heads == problem.kv_heads {
        g.matmul_into(a, b, result);
    } else {
        let each = g.matmul(name, a, b, problem.element.of_graph());
        g.reduce_into(Reduction::Add, each, result);
    }
}

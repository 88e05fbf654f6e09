//! The graphs as data; these need no GPU.

use longreach_kernels::Error;
use longreach_kernels::cuda::cudnn::{
    Bound, Element, Graph, Operation, Problem, Rows, TensorId, Type, backward, forward,
};

pub fn problem(q_len: i64, kv_len: i64, heads: [i64; 2], dim: i64, bound: Bound) -> Problem {
    let [q_heads, kv_heads] = heads;
    Problem {
        batch: 1,
        q_heads,
        kv_heads,
        q_len,
        kv_len,
        head_dim: dim,
        value_dim: dim,
        element: Element::Bf16,
        q: Rows::contiguous(q_len, q_heads, dim),
        k: Rows::contiguous(kv_len, kv_heads, dim),
        v: Rows::contiguous(kv_len, kv_heads, dim),
        o: Rows::contiguous(q_len, q_heads, dim),
        d_o: Rows::contiguous(q_len, q_heads, dim),
        bound,
        deterministic: false,
    }
}

fn read_before_written(graph: &Graph) -> Vec<&'static str> {
    let mut written: Vec<TensorId> = Vec::new();
    let mut early = Vec::new();
    for operation in &graph.operations {
        let (reads, write) = match operation {
            Operation::Matmul { a, b, c } => (vec![*a, *b], *c),
            Operation::Pointwise { x, b, t, y, .. } => {
                ([Some(*x), *b, *t].into_iter().flatten().collect(), *y)
            }
            Operation::Reduce { x, y, .. } | Operation::Reshape { x, y } => (vec![*x], *y),
        };
        let produced: Vec<TensorId> = graph.operations.iter().map(write_of).collect();
        early.extend(
            reads
                .into_iter()
                .filter(|id| produced.contains(id) && !written.contains(id))
                .map(|id| graph.tensors[id.0].name),
        );
        written.push(write);
    }
    early
}

fn write_of(operation: &Operation) -> TensorId {
    match operation {
        Operation::Matmul { c, .. } => *c,
        Operation::Pointwise { y, .. } | Operation::Reduce { y, .. } | Operation::Reshape { y, .. } => *y,
    }
}

#[test]
fn every_tensor_is_written_once_before_it_is_read() {
    let window = Bound { left: Some(9), right: Some(3) };
    for bound in [Bound::FULL, Bound { left: None, right: Some(0) }, window] {
        for heads in [[8, 2], [4, 4]] {
            let problem = problem(128, 192, heads, 64, bound);
            for graph in [forward(&problem).graph, backward(&problem).graph] {
                assert_eq!(read_before_written(&graph), [""; 0]);
                let mut written: Vec<TensorId> = graph.operations.iter().map(write_of).collect();
                let operations = written.len();
                written.sort();
                written.dedup();
                assert_eq!(written.len(), operations, "a tensor is written twice");
            }
        }
    }
}

#[test]
fn outputs_are_of_the_operands_type_and_sums_are_float32() {
    let backward = backward(&problem(128, 128, [8, 2], 64, Bound::FULL));
    let dtype = |id: TensorId| backward.graph.tensors[id.0].dtype;
    assert_eq!([backward.dq, backward.dk, backward.dv].map(dtype), [Type::Bf16; 3]);
    assert_eq!(
        [Some(backward.row_sums), backward.dq_sum, Some(backward.lse)].map(|id| id.map(dtype)),
        [Some(Type::F32); 3]
    );
    let forward = forward(&problem(128, 128, [8, 2], 64, Bound::FULL));
    assert_eq!(forward.graph.tensors[forward.o.0].dtype, Type::Bf16);
}

#[test]
fn shapes_that_the_library_gets_wrong_are_refused_by_name() {
    let refused = |problem: Problem, words: &str| match problem.check() {
        Err(Error::Refused(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?}"),
    };
    let causal = Bound { left: None, right: Some(0) };
    refused(problem(8, 8, [10, 4], 64, causal), "10 query heads are no multiple of 4");
    refused(problem(8, 8, [4, 4], 60, causal), "head dimension 60");
    refused(problem(8, 8, [4, 4], 264, causal), "head dimension 264");
    refused(problem(1, 1, [4, 4], 64, causal), "one query with one key");
    refused(problem(8, 0, [4, 4], 64, causal), "nothing to compute");
    // Bottom-right with more queries than keys: the first rows see nothing.
    refused(problem(8, 4, [4, 4], 64, Bound { left: None, right: Some(-4) }), "sees no key");
    assert_eq!(problem(8, 8, [4, 2], 64, causal).check(), Ok(()));
}

#[test]
fn an_output_in_float32_is_refused_because_the_library_computes_it_wrong() {
    let problem = problem(128, 128, [8, 2], 64, Bound::FULL);
    let (mut forward, backward) = (forward(&problem), backward(&problem));
    assert_eq!(forward.graph.known_hole(), None);
    assert_eq!(backward.graph.known_hole(), None, "a sum that is read again is not an output");
    forward.graph.tensors[forward.o.0].dtype = Type::F32;
    let hole = forward.graph.known_hole().expect("a refusal");
    assert!(hole.contains("o as float32 output") && hole.contains("bf16 or f16"), "{hole}");
}

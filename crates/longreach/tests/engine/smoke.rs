use crate::harness::{Oracle, Problem, Setting, Sizes, run};
use longreach::{DType, Layout, Mask};

#[test]
fn causal_attention_on_any_number_of_pes_is_exact() {
    let sizes = Sizes { batch: 2, q_len: 131, kv_len: 131, q_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32, dtype: DType::F32 };
    let problem = Problem::random(7, sizes, Mask::causal());
    let oracle = Oracle::new(&problem);
    for pes in [1, 2, 3, 4, 5, 7, 8] {
        for layout in [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 1 }] {
            for stages in [1, 2, 7] {
                let setting = Setting::new(pes, layout.clone(), stages);
                let results = run(&problem, &setting).unwrap();
                let failures = oracle.failures(&results);
                assert!(failures.is_empty(), "{setting:?}: {failures:#?}");
            }
        }
    }
}

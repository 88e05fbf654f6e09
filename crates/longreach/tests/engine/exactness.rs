//! Plain attention on any number of PEs.

use crate::harness::{Oracle, Problem, Setting, Sizes, exact_everywhere, run};
use longreach::{DType, Layout, Mask};

#[test]
fn causal_attention_on_any_number_of_pes_is_exact() {
    for (len, dtype) in [(131, DType::F32), (64, DType::F16)] {
        let sizes = Sizes {
            batch: 2,
            q_len: len,
            kv_len: len,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 32,
            value_dim: 16,
            dtype,
        };
        exact_everywhere(&Problem::random(7, sizes, Mask::causal()), &[1, 2, 3, 4, 5, 7, 8]);
    }
}

#[test]
fn more_pes_than_tokens_and_one_element_heads() {
    let sizes = Sizes {
        batch: 3,
        q_len: 5,
        kv_len: 5,
        q_heads: 3,
        kv_heads: 1,
        head_dim: 1,
        value_dim: 1,
        dtype: DType::F32,
    };
    exact_everywhere(&Problem::random(9, sizes, Mask::causal()), &[1, 4, 8]);
}

/// Heads of one element are not among them: a gradient is then so few numbers that where its terms cancel decides how
/// many of its digits any order of adding keeps.
#[test]
fn small_heads_are_exact() {
    let mut found = Vec::new();
    for (head_dim, value_dim) in [(2, 2), (3, 3), (2, 1)] {
        for len in [2, 5, 37, 131] {
            for seed in 0..8 {
                let sizes = Sizes {
                    batch: 1,
                    q_len: len,
                    kv_len: len,
                    q_heads: 2,
                    kv_heads: 1,
                    head_dim,
                    value_dim,
                    dtype: DType::F32,
                };
                let problem = Problem::random(100 * seed, sizes, Mask::causal());
                let oracle = Oracle::new(&problem);
                for pes in [1, 2, 3, 5] {
                    let setting = Setting::new(pes, Layout::Zigzag, 2);
                    let results = run(&problem, &setting).unwrap();
                    let failures = oracle.failures(&results);
                    if !failures.is_empty() {
                        found.push(format!("{head_dim}/{value_dim} {len} seed {seed} P {pes}: {failures:?}"));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{} {found:#?}", found.len());
}

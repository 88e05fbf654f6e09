//! Plain attention on any number of PEs.

use crate::harness::{Problem, Sizes, exact_everywhere};
use longreach::{DType, Mask};

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

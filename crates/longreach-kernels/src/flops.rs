//! How much arithmetic attention is, for rates and cost models.

/// Floating-point operations of a forward over `visible_pairs` (query row, key) pairs a head:
/// two products, a multiply and an add for each element.
pub const fn flops_forward(visible_pairs: u64, heads: u64, head_dim_qk: u64, head_dim_v: u64) -> u64 {
    visible_pairs.saturating_mul(heads).saturating_mul(2 * (head_dim_qk + head_dim_v))
}

/// Floating-point operations of a backward: scores, dQ and dK over the head_dim of Q and K, dP and dV
/// over that of V.
pub const fn flops_backward(visible_pairs: u64, heads: u64, head_dim_qk: u64, head_dim_v: u64) -> u64 {
    visible_pairs.saturating_mul(heads).saturating_mul(6 * head_dim_qk + 4 * head_dim_v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_products_of_which_five_are_the_backwards() {
        let product = |dim: u64| 2 * 10 * 3 * dim;
        assert_eq!(flops_forward(10, 3, 192, 128), product(192) + product(128));
        assert_eq!(flops_backward(10, 3, 192, 128), 3 * product(192) + 2 * product(128));
    }
}

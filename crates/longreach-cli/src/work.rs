//! How much work the visible pairs are, which is what rates are measured against.

use crate::input::Sizes;
use longreach::Bands;

/// For each query position, the number of keys that it sees, over all batch rows.
pub fn pairs(bands: &Bands, sizes: &Sizes) -> Vec<u64> {
    let mut pairs = vec![0; sizes.q_len];
    let keys = i64::try_from(sizes.kv_len).unwrap_or(i64::MAX);
    // One list of bands stands for every batch row.
    let times = if bands.rows.len() == 1 {
        sizes.batch as u64
    } else {
        1
    };
    for band in bands.rows.iter().flatten() {
        for row in band.q.clone() {
            let visible = band.visible(row, keys);
            if let Some(pairs) = usize::try_from(row).ok().and_then(|row| pairs.get_mut(row)) {
                *pairs += times * (visible.end - visible.start) as u64;
            }
        }
    }
    pairs
}

/// Floating-point operations of the forward pass over `pairs` (query, key) pairs.
pub fn forward_flops(pairs: u64, sizes: &Sizes) -> f64 {
    pairs as f64 * sizes.q_heads as f64 * 2.0 * (sizes.head_dim + sizes.value_dim) as f64
}

/// Floating-point operations of the backward pass over `pairs` (query, key) pairs.
pub fn backward_flops(pairs: u64, sizes: &Sizes) -> f64 {
    pairs as f64 * sizes.q_heads as f64 * (6 * sizes.head_dim + 4 * sizes.value_dim) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach::{Band, DType, Edge};

    #[test]
    fn causal_pairs_and_their_operations() {
        let sizes = Sizes {
            dtype: DType::F32,
            batch: 2,
            q_len: 4,
            kv_len: 5,
            q_heads: 3,
            kv_heads: 1,
            head_dim: 8,
            value_dim: 6,
        };
        let band = Band {
            q: 0..4,
            lo: Edge::Fixed(0),
            hi: Edge::Diagonal(2),
        };
        let one = Bands {
            q_len: 4,
            kv_len: 5,
            rows: vec![vec![band.clone()]],
        };
        assert_eq!(pairs(&one, &sizes), [4, 6, 8, 10]);
        let two = Bands {
            q_len: 4,
            kv_len: 5,
            rows: vec![vec![band], vec![]],
        };
        assert_eq!(pairs(&two, &sizes), [2, 3, 4, 5]);
        assert_eq!(forward_flops(28, &sizes), 28.0 * 3.0 * 28.0);
        assert_eq!(backward_flops(28, &sizes), 28.0 * 3.0 * 72.0);
    }
}

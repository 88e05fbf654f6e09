//! Which part of the visible pairs belongs to which query, which is what a PE's rate is measured against.

use crate::input::Sizes;
use longreach_plan::Bands;

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

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_kernels::DType;
    use longreach_plan::{Band, Edge};

    #[test]
    fn pairs_are_those_of_all_batch_rows() {
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
    }
}

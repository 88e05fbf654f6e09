//! Attention in float64, plainly.

use rayon::prelude::*;

/// Sizes of one batch entry.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub q_heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub dim: usize,
    pub value_dim: usize,
}

/// Results of one batch entry in float64: tensors `[rows, heads, columns]`, lse `[heads, rows]`.
pub struct Exact {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

/// Of contiguous operands; `sees(row, key)` is the mask. A row that sees nothing gives 0 and -inf.
pub fn exact(
    s: &Sizes,
    sees: &(dyn Fn(usize, usize) -> bool + Sync),
    scale: f64,
    [q, k, v, d_o]: [&[f64]; 4],
) -> Exact {
    let mut found = Exact {
        o: vec![0.0; s.q_len * s.q_heads * s.value_dim],
        lse: vec![f64::NEG_INFINITY; s.q_heads * s.q_len],
        dq: vec![0.0; q.len()],
        dk: vec![0.0; k.len()],
        dv: vec![0.0; v.len()],
    };
    let heads: Vec<Exact> =
        (0..s.q_heads).into_par_iter().map(|h| head(s, sees, scale, [q, k, v, d_o], h)).collect();
    let put = |all: &mut [f64], one: &[f64], heads: usize, head: usize, width: usize| {
        for (row, one) in one.chunks(width).enumerate() {
            let all = &mut all[(row * heads + head) * width..][..width];
            all.iter_mut().zip(one).for_each(|(all, one)| *all += one);
        }
    };
    for (h, one) in heads.iter().enumerate() {
        let g = h / (s.q_heads / s.kv_heads);
        put(&mut found.o, &one.o, s.q_heads, h, s.value_dim);
        put(&mut found.dq, &one.dq, s.q_heads, h, s.dim);
        put(&mut found.dk, &one.dk, s.kv_heads, g, s.dim);
        put(&mut found.dv, &one.dv, s.kv_heads, g, s.value_dim);
        found.lse[h * s.q_len..][..s.q_len].copy_from_slice(&one.lse);
    }
    found
}

/// One query head: tensors `[rows, columns]`.
fn head(
    s: &Sizes,
    sees: &(dyn Fn(usize, usize) -> bool + Sync),
    scale: f64,
    [q, k, v, d_o]: [&[f64]; 4],
    h: usize,
) -> Exact {
    let g = h / (s.q_heads / s.kv_heads);
    let (d, dv) = (s.dim, s.value_dim);
    let mut found = Exact {
        o: vec![0.0; s.q_len * dv],
        lse: vec![f64::NEG_INFINITY; s.q_len],
        dq: vec![0.0; s.q_len * d],
        dk: vec![0.0; s.kv_len * d],
        dv: vec![0.0; s.kv_len * dv],
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let add = |to: &mut [f64], factor: f64, from: &[f64]| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
    };
    let key = |j: usize| &k[(j * s.kv_heads + g) * d..][..d];
    let value = |j: usize| &v[(j * s.kv_heads + g) * dv..][..dv];
    for i in 0..s.q_len {
        let q_row = &q[(i * s.q_heads + h) * d..][..d];
        let do_row = &d_o[(i * s.q_heads + h) * dv..][..dv];
        let columns: Vec<usize> = (0..s.kv_len).filter(|&j| sees(i, j)).collect();
        if columns.is_empty() {
            continue;
        }
        let scores: Vec<f64> = columns.iter().map(|&j| scale * dot(q_row, key(j))).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + scores.iter().map(|score| (score - largest).exp()).sum::<f64>().ln();
        found.lse[i] = lse;
        let weights: Vec<f64> = scores.iter().map(|score| (score - lse).exp()).collect();
        let o = &mut found.o[i * dv..][..dv];
        for (&j, &weight) in columns.iter().zip(&weights) {
            add(o, weight, value(j));
        }
        let delta = dot(do_row, o);
        for (&j, &weight) in columns.iter().zip(&weights) {
            let ds = weight * (dot(do_row, value(j)) - delta) * scale;
            add(&mut found.dv[j * dv..][..dv], weight, do_row);
            add(&mut found.dq[i * d..][..d], ds, key(j));
            add(&mut found.dk[j * d..][..d], ds, q_row);
        }
    }
    found
}

/// ||found - exact|| / ||exact||.
pub fn relative(found: &[f64], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(exact).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied())
}

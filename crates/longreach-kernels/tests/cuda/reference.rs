//! Attention in float64, plainly.

use longreach_kernels::cuda::cudnn::{Bound, Problem};

/// Results of one call in float64: tensors `[rows, heads, columns]`, lse `[heads, rows]`.
pub struct Exact {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

fn sees(bound: Bound, row: i64, column: i64) -> bool {
    bound.right.is_none_or(|right| column <= row + right)
        && bound.left.is_none_or(|left| column >= row - left)
}

/// Of a problem of one batch row with contiguous operands.
pub fn exact(p: &Problem, scale: f64, q: &[f64], k: &[f64], v: &[f64], d_o: &[f64]) -> Exact {
    let size = [p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, p.value_dim].map(|size| size as usize);
    exact_where(size, scale, [q, k, v, d_o], |row, column| sees(p.bound, row as i64, column as i64))
}

/// Of one batch row where `sees` says who sees what; sizes are heads of q and k, rows of q and k, dims of q and v.
pub fn exact_where(
    [hq, hk, sq, sk, d, dv]: [usize; 6],
    scale: f64,
    [q, k, v, d_o]: [&[f64]; 4],
    sees: impl Fn(usize, usize) -> bool,
) -> Exact {
    let mut found = Exact {
        o: vec![0.0; sq * hq * dv],
        lse: vec![0.0; hq * sq],
        dq: vec![0.0; q.len()],
        dk: vec![0.0; k.len()],
        dv: vec![0.0; v.len()],
    };
    for h in 0..hq {
        let g = h / (hq / hk);
        for i in 0..sq {
            let q_row = &q[(i * hq + h) * d..][..d];
            let do_row = &d_o[(i * hq + h) * dv..][..dv];
            let row =
                |x: &[f64], j: usize, width: usize| (j * hk + g) * width..(j * hk + g) * width + x.len();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let columns: Vec<usize> = (0..sk).filter(|&j| sees(i, j)).collect();
            if columns.is_empty() {
                found.lse[h * sq + i] = f64::NEG_INFINITY;
                continue;
            }
            let scores: Vec<f64> =
                columns.iter().map(|&j| scale * dot(q_row, &k[row(q_row, j, d)])).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            let lse = largest + sum.ln();
            found.lse[h * sq + i] = lse;
            let weights: Vec<f64> = scores.iter().map(|score| (score - lse).exp()).collect();
            for (&j, weight) in columns.iter().zip(&weights) {
                let values = &v[row(do_row, j, dv)];
                found.o[(i * hq + h) * dv..][..dv].iter_mut().zip(values).for_each(|(o, v)| *o += weight * v);
            }
            let delta = dot(do_row, &found.o[(i * hq + h) * dv..][..dv]);
            for (&j, weight) in columns.iter().zip(&weights) {
                let at = row(do_row, j, dv);
                let ds = weight * (dot(do_row, &v[at.clone()]) - delta) * scale;
                found.dv[at].iter_mut().zip(do_row).for_each(|(sum, x)| *sum += weight * x);
                let at = row(q_row, j, d);
                found.dq[(i * hq + h) * d..][..d]
                    .iter_mut()
                    .zip(&k[at.clone()])
                    .for_each(|(sum, x)| *sum += ds * x);
                found.dk[at].iter_mut().zip(q_row).for_each(|(sum, x)| *sum += ds * x);
            }
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

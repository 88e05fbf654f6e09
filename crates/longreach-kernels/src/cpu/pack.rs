//! Rows of views, widened to float32 and laid out for the products.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;

use crate::tensor::{Data, View};

/// Writes row `[b, s, h, ..]` of `view` into `dst`.
pub(crate) fn row(view: &View, [b, s, h]: [usize; 3], dst: &mut [f32]) {
    let [sb, ss, sh, sd] = view.strides();
    let start = b * sb + s * ss + h * sh;
    let dim = dst.len();
    if sd == 1 {
        match view.data() {
            Data::F32(data) => dst.copy_from_slice(&data[start..start + dim]),
            Data::F16(data) => data[start..start + dim].convert_to_f32_slice(dst),
            Data::Bf16(data) => {
                for (to, from) in dst.iter_mut().zip(&data[start..start + dim]) {
                    // A bfloat16 is the upper half of the float32 of the same value.
                    *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                }
            }
        }
    } else {
        let data = view.data();
        for (d, to) in dst.iter_mut().enumerate() {
            *to = data.get(start + d * sd);
        }
    }
}

/// Writes the rows of `pieces` one after another into `dst`, and zeros into what remains of it.
pub(crate) fn rows(
    view: &View,
    (b, h): (usize, usize),
    pieces: impl Iterator<Item = Range<usize>>,
    dst: &mut [f32],
) {
    let dim = view.shape()[3];
    let mut at = 0;
    for s in pieces.flatten() {
        row(view, [b, s, h], &mut dst[at..at + dim]);
        at += dim;
    }
    dst[at..].fill(0.0);
}

/// Transposes `src`, `[columns][dim]`, into `dst`, `[dim][columns]`; `columns` is a multiple of 16.
pub(crate) fn transpose(src: &[f32], dst: &mut [f32], columns: usize, dim: usize) {
    for first in (0..columns).step_by(16) {
        let rows: [&[f32]; 16] = std::array::from_fn(|c| &src[(first + c) * dim..(first + c + 1) * dim]);
        for d in 0..dim {
            let to = &mut dst[d * columns + first..d * columns + first + 16];
            for c in 0..16 {
                to[c] = rows[c][d];
            }
        }
    }
}

/// The elements from row `[b, s, h]` on and the row stride, where `rows` rows can be used as they lie.
pub(crate) fn in_place<'a>(
    view: &View<'a>,
    [b, s, h]: [usize; 3],
    rows: usize,
) -> Option<(&'a [f32], usize)> {
    let [sb, ss, sh, sd] = view.strides();
    let dim = view.shape()[3];
    match view.data() {
        Data::F32(data) if sd == 1 && ss >= dim && rows > 0 => {
            let start = b * sb + s * ss + h * sh;
            Some((&data[start..start + (rows - 1) * ss + dim], ss))
        }
        _ => None,
    }
}

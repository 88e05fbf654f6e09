//! Matrix products on slices, on the calling thread.

/// A matrix in a slice: element `(i, j)` is `data[i * rs + j * cs]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    pub data: &'a [f32],
    pub rs: usize,
    pub cs: usize,
}

/// Elements that an `m` by `n` matrix with these strides reaches.
fn reach(m: usize, n: usize, rs: usize, cs: usize) -> usize {
    if m == 0 || n == 0 { 0 } else { (m - 1) * rs + (n - 1) * cs + 1 }
}

/// Terms that are summed in one go; longer sums are cut here, so that where is not `gemm`'s choice.
const TERMS: usize = 512;

/// `dst = factor * lhs * rhs`, or `dst += ...` when `add`; `dst` is column-major with column stride
/// `dst_cs`, `m` by `n`, and the sum runs over `k`.
#[inline]
#[allow(clippy::too_many_arguments)] // A matrix product has three sizes, three matrices and a mode.
pub(crate) fn gemm(
    (m, n, k): (usize, usize, usize),
    dst: &mut [f32],
    dst_cs: usize,
    add: bool,
    lhs: Mat,
    rhs: Mat,
    factor: f32,
) {
    if k > TERMS {
        for first in (0..k).step_by(TERMS) {
            let sizes = (m, n, TERMS.min(k - first));
            let lhs = Mat { data: &lhs.data[first * lhs.cs..], ..lhs };
            let rhs = Mat { data: &rhs.data[first * rhs.rs..], ..rhs };
            gemm(sizes, dst, dst_cs, add || first > 0, lhs, rhs, factor);
        }
        return;
    }
    assert!(reach(m, n, 1, dst_cs) <= dst.len() && dst_cs >= m);
    assert!(reach(m, k, lhs.rs, lhs.cs) <= lhs.data.len());
    assert!(reach(k, n, rhs.rs, rhs.cs) <= rhs.data.len());
    // SAFETY: the assertions above keep every element that the product reads or writes inside the
    // slices; strides are below `isize::MAX` as the slices are; `dst` does not alias the inputs, being
    // borrowed mutably, and its columns do not overlap.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            dst_cs as isize,
            1,
            add,
            lhs.data.as_ptr(),
            lhs.cs as isize,
            lhs.rs as isize,
            rhs.data.as_ptr(),
            rhs.cs as isize,
            rhs.rs as isize,
            1.0,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

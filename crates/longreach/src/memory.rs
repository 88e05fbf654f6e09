//! Allocating with an error instead of an abort.

use crate::error::Error;

/// An empty vector with room for `len` elements. Fails when the memory cannot be had; `what` says what it was for.
pub(crate) fn reserved<T>(what: &'static str, len: usize) -> Result<Vec<T>, Error> {
    let mut data = Vec::new();
    data.try_reserve_exact(len)
        .map_err(|_| Error::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) })?;
    Ok(data)
}

/// `len` times `value`. Fails as [`reserved`].
pub(crate) fn filled<T: Clone>(what: &'static str, value: T, len: usize) -> Result<Vec<T>, Error> {
    let mut data = reserved(what, len)?;
    data.resize(len, value);
    Ok(data)
}

/// The number of elements of a tensor of `shape`.
pub(crate) fn count(what: &'static str, shape: [usize; 4]) -> Result<usize, Error> {
    let count = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    count.ok_or(Error::OutOfMemory { what, bytes: usize::MAX })
}

//! Aligned scratch, and outputs that several threads write disjoint parts of.

use std::marker::PhantomData;
use std::ops::Range;

/// A cache line, which is also the widest vector.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Zeroed scratch that starts on a cache line; one allocation, cut into parts by [`Scratch::parts`].
pub(crate) struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// Scratch for parts of these lengths.
    pub(crate) fn new<const N: usize>(lens: [usize; N]) -> Self {
        Self { lines: vec![Line([0.0; 16]); lens.iter().map(|len| len.div_ceil(16)).sum()] }
    }

    /// Bytes that [`Scratch::new`] takes for these lengths.
    pub(crate) fn bytes<const N: usize>(lens: [usize; N]) -> usize {
        lens.iter().map(|len| len.div_ceil(16).saturating_mul(64)).fold(0, usize::saturating_add)
    }

    /// The scratch cut into parts of these lengths, each on a cache line.
    pub(crate) fn parts<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let len = self.lines.len() * 16;
        // SAFETY: `Line` is `repr(C)` and exactly 16 floats (size 64 = alignment 64, no padding), so the
        // lines are `len` initialised floats, borrowed for as long as `self` is.
        let mut rest = unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<f32>(), len) };
        lens.map(|len| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(len.div_ceil(16) * 16);
            rest = tail;
            &mut part[..len]
        })
    }
}

/// A slice that several threads write disjoint parts of.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: `Shared` only hands out parts through `slice`, whose callers promise that no two live parts
// overlap; floats may be written from any thread.
unsafe impl Send for Shared<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The part `range`.
    ///
    /// # Safety
    /// While the returned slice lives, no other part that overlaps `range` may be in use, on any thread.
    #[allow(clippy::mut_from_ref)] // That is the purpose: the caller keeps parts apart.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

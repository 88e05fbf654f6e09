//! Memory as transfers see it, wherever it is.

use crate::cuda;

/// Bytes that are read.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// Of the host.
    Host(&'a [u8]),
    /// Of a GPU.
    Gpu(&'a cuda::Memory),
}

/// Bytes that are written.
#[derive(Debug)]
pub enum BytesMut<'a> {
    /// Of the host.
    Host(&'a mut [u8]),
    /// Of a GPU.
    Gpu(&'a mut cuda::Memory),
}

/// A value that transfers fill and send: one or more pieces of memory, numbered from 0.
pub trait Parts: Send + Sync + 'static {
    /// The bytes of part `part`; none where there is no such part.
    fn part(&self, part: usize) -> Option<Bytes<'_>>;

    /// As [`Parts::part`], to be written.
    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>>;
}

impl Parts for Vec<u8> {
    fn part(&self, part: usize) -> Option<Bytes<'_>> {
        (part == 0).then_some(Bytes::Host(self))
    }

    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>> {
        (part == 0).then_some(BytesMut::Host(self))
    }
}

impl Parts for cuda::Memory {
    fn part(&self, part: usize) -> Option<Bytes<'_>> {
        (part == 0).then_some(Bytes::Gpu(self))
    }

    fn part_mut(&mut self, part: usize) -> Option<BytesMut<'_>> {
        (part == 0).then_some(BytesMut::Gpu(self))
    }
}

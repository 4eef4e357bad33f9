//! [`ObjectBytes`]: the result of a read, and its few constructors.
//!
//! Invariant: every byte in it was hashed against a digest of a chunk or an object, or comes from a local object that was hashed
//! before the store linked it in, or belongs to a run of zeros of the table. The constructors are private to the crate, so no other
//! crate can pass anything else as the content of an object.

use std::ops::Deref;

use bytes::Bytes;
use tarpon_oci::Verified;

/// Verified bytes of an object, exactly as many as requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectBytes(Bytes);

impl ObjectBytes {
    /// A part of one chunk, without a copy.
    pub(crate) fn of_chunk(chunk: &Verified<Bytes>, start: usize, length: usize) -> Option<Self> {
        let end = start.checked_add(length)?;
        (end <= chunk.len()).then(|| Self(chunk.slice(start..end)))
    }

    /// Bytes of a file in the store that are known to be verified.
    pub(crate) fn of_store(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for ObjectBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Assembles the bytes of several chunks. Bytes that are not filled are zeros of the table.
pub(crate) struct Assembly {
    buffer: Vec<u8>,
    offset: u64,
}

impl Assembly {
    /// An assembly of the bytes `offset..offset + length` of an object.
    pub(crate) fn new(offset: u64, length: usize) -> Self {
        Self { buffer: vec![0; length], offset }
    }

    /// The part of the buffer that belongs to `size` bytes at `at`, and where in those bytes it starts.
    pub(crate) fn window(&mut self, at: u64, size: u64) -> (&mut [u8], u64) {
        let end = self.offset + self.buffer.len() as u64;
        let from = at.clamp(self.offset, end);
        let to = at.saturating_add(size).clamp(self.offset, end);
        let index = |place: u64| usize::try_from(place - self.offset).unwrap_or(self.buffer.len());
        let (first, last) = (index(from), index(to));
        (&mut self.buffer[first..last], from.saturating_sub(at))
    }

    /// Copies the needed part of a chunk that starts at `at`.
    pub(crate) fn fill(&mut self, at: u64, chunk: &Verified<Bytes>) {
        let (window, skip) = self.window(at, chunk.len() as u64);
        let part = usize::try_from(skip).ok().and_then(|skip| chunk.get(skip..)?.get(..window.len()));
        if let Some(part) = part {
            window.copy_from_slice(part);
        }
    }

    /// The assembled bytes, after all chunks were filled in.
    pub(crate) fn finish(self) -> ObjectBytes {
        ObjectBytes(self.buffer.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assembly_takes_the_requested_part_of_each_chunk() {
        let mut assembly = Assembly::new(3, 6);
        assembly.fill(0, &Verified::seal(Bytes::from_static(b"abcde")));
        assembly.fill(7, &Verified::seal(Bytes::from_static(b"xyz")));
        assert_eq!(&*assembly.finish(), b"de\0\0xy");
    }

    #[test]
    fn a_chunk_beside_the_read_changes_nothing() {
        let mut assembly = Assembly::new(10, 2);
        assembly.fill(0, &Verified::seal(Bytes::from_static(b"abc")));
        assembly.fill(12, &Verified::seal(Bytes::from_static(b"abc")));
        assert_eq!(&*assembly.finish(), b"\0\0");
    }
}

//! Proof that bytes match their digest.

use std::ops::Deref;

use bytes::Bytes;

use crate::{Digest, Hasher};

/// A value and the sha256 of its bytes. It cannot be created without hashing those bytes, so the two always belong together: a
/// digest bypass does not compile.
///
/// There are two ways to create one, with different meanings:
///
/// - [`Verified::check`] and [`Verified::check_stream`] compare with a digest from another party. This is how bytes
///   from outside become trusted.
/// - [`Verified::seal`] and [`Verified::seal_stream`] name bytes by their own hash, where no digest is known yet. That is
///   sound for storing them under that very name, but is no evidence that they are the requested ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T> {
    value: T,
    digest: Digest,
}

/// The bytes do not match the digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("digest mismatch: expected {expected}, got {actual}")]
pub struct DigestMismatch {
    /// The requested digest.
    pub expected: Digest,
    /// The digest of the bytes.
    pub actual: Digest,
}

impl<T: AsRef<[u8]>> Verified<T> {
    /// Hashes `value` and compares.
    pub fn check(expected: &Digest, value: T) -> Result<Self, DigestMismatch> {
        compare(expected, Digest::of(value.as_ref()))?;
        Ok(Self { value, digest: *expected })
    }

    /// Names `value` by the digest of its own bytes, without a comparison: for content that this program made or received without a
    /// digest.
    pub fn seal(value: T) -> Self {
        let digest = Digest::of(value.as_ref());
        Self { value, digest }
    }
}

impl Verified<()> {
    /// Compares the input of `hasher`: for bytes that arrived in pieces.
    pub fn check_stream(expected: &Digest, hasher: Hasher) -> Result<Self, DigestMismatch> {
        compare(expected, hasher.finish())?;
        Ok(Self { value: (), digest: *expected })
    }

    /// As [`Verified::seal`], for bytes that arrived in pieces.
    pub fn seal_stream(hasher: Hasher) -> Self {
        Self { value: (), digest: hasher.finish() }
    }
}

impl<T> Verified<T> {
    /// The digest of the bytes.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The proof alone: bytes of this digest were hashed.
    pub fn proof(&self) -> Verified<()> {
        Verified { value: (), digest: self.digest }
    }

    /// Drops the proof and returns the value.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl Verified<Bytes> {
    /// Copies the bytes to memory of their own: a slice keeps the whole buffer that it was cut from in memory.
    #[must_use]
    pub fn compact(&self) -> Self {
        Self { value: Bytes::copy_from_slice(&self.value), digest: self.digest }
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

fn compare(expected: &Digest, actual: Digest) -> Result<(), DigestMismatch> {
    if *expected == actual { Ok(()) } else { Err(DigestMismatch { expected: *expected, actual }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matching_bytes_are_verified() {
        let digest = Digest::of(b"tarpon");
        assert_eq!(*Verified::check(&digest, b"tarpon").unwrap(), b"tarpon");
        let error = Verified::check(&digest, b"tarpom").unwrap_err();
        assert_eq!(error, DigestMismatch { expected: digest, actual: Digest::of(b"tarpom") });
    }

    #[test]
    fn what_is_sealed_goes_by_its_own_hash_and_no_other() {
        assert_eq!(*Verified::seal(b"tarpon").digest(), Digest::of(b"tarpon"));
        let mut hasher = Hasher::new();
        hasher.update(b"tarpon");
        assert_eq!(*Verified::seal_stream(hasher).digest(), Digest::of(b"tarpon"));
    }

    #[test]
    fn a_compact_copy_is_as_verified_and_lies_elsewhere() {
        let all = Bytes::from_static(b"before tarpon after");
        let part = Verified::check(&Digest::of(b"tarpon"), all.slice(7..13)).unwrap();
        let copy = part.compact();
        assert_eq!(copy, part);
        assert_ne!(copy.as_ptr(), part.as_ptr());
    }

    #[test]
    fn a_stream_is_verified_as_a_whole() {
        let mut hasher = Hasher::new();
        hasher.update(b"tar");
        hasher.update(b"pon");
        assert!(Verified::check_stream(&Digest::of(b"tarpon"), hasher.clone()).is_ok());
        assert!(Verified::check_stream(&Digest::of(b"tar"), hasher).is_err());
    }
}

//! Proof that bytes were checked against a digest.

use std::ops::Deref;

use crate::{Digest, Hasher};

/// A value whose bytes were hashed and compared with the digest that was expected of them.
///
/// There is no other way to get one, so whatever asks for a `Verified` cannot be handed unchecked bytes: a digest
/// bypass does not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T> {
    value: T,
    digest: Digest,
}

/// The bytes were not the ones that the digest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("digest mismatch: expected {expected}, got {actual}")]
pub struct DigestMismatch {
    /// What was asked for.
    pub expected: Digest,
    /// What the bytes hash to.
    pub actual: Digest,
}

impl<T: AsRef<[u8]>> Verified<T> {
    /// Hashes `value` and compares.
    pub fn check(expected: &Digest, value: T) -> Result<Self, DigestMismatch> {
        compare(expected, Digest::of(value.as_ref()))?;
        Ok(Self { value, digest: *expected })
    }

    /// Names `value` by the digest of its own bytes: for content that this program made or that somebody handed
    /// it as it is, where there is no digest to compare with.
    pub fn seal(value: T) -> Self {
        let digest = Digest::of(value.as_ref());
        Self { value, digest }
    }
}

impl Verified<()> {
    /// For bytes that went by in pieces: compares what `hasher` saw.
    pub fn check_stream(expected: &Digest, hasher: Hasher) -> Result<Self, DigestMismatch> {
        compare(expected, hasher.finish())?;
        Ok(Self { value: (), digest: *expected })
    }

    /// As [`Verified::seal`], for bytes that went by in pieces.
    pub fn seal_stream(hasher: Hasher) -> Self {
        Self { value: (), digest: hasher.finish() }
    }
}

impl<T> Verified<T> {
    /// The digest that the bytes were checked against.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The proof alone: bytes of this digest were seen.
    pub fn proof(&self) -> Verified<()> {
        Verified { value: (), digest: self.digest }
    }

    /// Gives up the proof and keeps the value.
    pub fn into_inner(self) -> T {
        self.value
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
    fn a_stream_is_verified_as_a_whole() {
        let mut hasher = Hasher::new();
        hasher.update(b"tar");
        hasher.update(b"pon");
        assert!(Verified::check_stream(&Digest::of(b"tarpon"), hasher.clone()).is_ok());
        assert!(Verified::check_stream(&Digest::of(b"tar"), hasher).is_err());
    }
}

//! Digests of what the benchmarks generate.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

/// `sha256:` and the hash of these bytes.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hash_of(bytes))
}

/// The hash of these bytes.
pub(super) fn hash_of(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// Counts and hashes the bytes written through it.
pub(super) struct Hashing<W> {
    to: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashing<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, hash: Sha256::new(), size: 0 }
    }

    /// What it wrote to, the hash, and the number of bytes.
    pub(super) fn end(self) -> (W, String, u64) {
        (self.to, hex(self.hash.finalize()), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.to.write(bytes)?;
        self.hash.update(&bytes[..length]);
        self.size += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

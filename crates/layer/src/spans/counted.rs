//! A reader that counts its position.

use std::io::{self, BufRead, Read};

pub(super) struct Counted<R> {
    inner: R,
    position: u64,
}

impl<R> Counted<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, position: 0 }
    }

    /// Bytes that were consumed.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

impl<R: BufRead> Counted<R> {
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.inner.fill_buf()?.is_empty())
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.inner.consume(count);
        self.position += count as u64;
    }
}

//! The buffered stream under the walker: counts its position, and lends its own buffer.

use std::io::{self, Read};

use super::BLOCK;

/// Large, so that a decoder behind it works in long runs and small files are hashed in place.
const BUFFER_BYTES: usize = 256 << 10;

/// The result of reading one block.
pub(super) enum Block {
    /// The block is complete.
    Full,
    /// The stream ended before its first byte.
    End,
    /// The stream ended inside it.
    Partial,
}

/// A reader with one fixed buffer.
pub(super) struct Input<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    position: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0, position: 0 }
    }

    /// Bytes that were consumed so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn into_reader(self) -> R {
        self.reader
    }

    /// Makes at least one byte available, unless the stream has ended.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // Full buffers: decoders may return less than requested, and short pieces cost per-piece work.
            while self.end < self.buffer.len() {
                match self.reader.read(&mut self.buffer[self.end..]) {
                    Ok(0) => break,
                    Ok(count) => self.end += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(self.end - self.start)
    }

    /// The available bytes, at most `limit`.
    pub(super) fn available(&self, limit: u64) -> &[u8] {
        let length = usize::try_from(limit).unwrap_or(usize::MAX).min(self.end - self.start);
        &self.buffer[self.start..self.start + length]
    }

    /// Consumes bytes that [`Input::available`] returned.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count.min(self.end - self.start);
        self.position += count as u64;
    }

    pub(super) fn block(&mut self, block: &mut [u8; BLOCK]) -> io::Result<Block> {
        let mut filled = 0;
        while filled < BLOCK {
            if self.fill()? == 0 {
                return Ok(if filled == 0 { Block::End } else { Block::Partial });
            }
            let piece = self.available((BLOCK - filled) as u64);
            let count = piece.len();
            block[filled..filled + count].copy_from_slice(piece);
            self.consume(count);
            filled += count;
        }
        Ok(Block::Full)
    }

    /// Consumes `count` bytes; `false` if the stream ended before.
    pub(super) fn skip(&mut self, mut count: u64) -> io::Result<bool> {
        while count > 0 {
            if self.fill()? == 0 {
                return Ok(false);
            }
            let taken = self.available(count).len();
            self.consume(taken);
            count -= taken as u64;
        }
        Ok(true)
    }

    /// Appends `count` bytes to `out`; `false` if the stream ended before. The caller has limited `count`.
    pub(super) fn read_into(&mut self, out: &mut Vec<u8>, mut count: u64) -> io::Result<bool> {
        while count > 0 {
            if self.fill()? == 0 {
                return Ok(false);
            }
            let piece = self.available(count);
            let taken = piece.len();
            out.extend_from_slice(piece);
            self.consume(taken);
            count -= taken as u64;
        }
        Ok(true)
    }
}

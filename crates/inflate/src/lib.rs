//! [`Inflate`]: raw deflate (RFC 1951), decoded by zlib-rs from block to block.
//!
//! A reader of a gzip layer may start at any block boundary, which is at any bit of a byte. zlib-rs stops there (`Z_BLOCK`) and reports
//! the bit, but neither its safe interface nor flate2 passes that on. So this crate calls the interface of zlib, which zlib-rs implements
//! in Rust (`libz-rs-sys`), and makes it safe.

mod stream;

use std::fmt;

use stream::{Code, Stream};

/// A decoder.
#[derive(Debug)]
pub struct Inflate {
    stream: Stream,
}

/// What a call of [`Inflate::decode`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// Bytes of the output that were written.
    pub given: usize,
    /// Why it stopped.
    pub stop: Stop,
}

/// Why decoding stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The input is consumed, or the output is full.
    Pause,
    /// A block has ended, and another one follows. It begins in the last consumed byte, with the highest `unused_bits` (0 to 7) of it.
    Block {
        /// Bits of the last consumed byte.
        unused_bits: u8,
    },
    /// The last block has ended.
    End,
}

/// The input is not deflate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed deflate")
    }
}

impl std::error::Error for Malformed {}

impl Inflate {
    /// A decoder at the beginning of a stream. Takes about 50 KiB.
    ///
    /// # Panics
    /// Memory is exhausted, as any allocation.
    pub fn new() -> Self {
        Self { stream: Stream::new() }
    }

    /// Makes it a decoder at the beginning of a stream again.
    pub fn reset(&mut self) {
        self.stream.reset();
    }

    /// Decodes until the input is consumed, the output is full, or a block ends. Bytes of earlier calls need not stay where they are.
    ///
    /// # Errors
    /// The input is not deflate. The decoder must be [reset](Inflate::reset) before it is used again.
    pub fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, Malformed> {
        let (mut taken, mut given) = (0, 0);
        loop {
            let step = self.stream.inflate(&input[taken..], &mut output[given..]);
            (taken, given) = (taken + step.taken, given + step.given);
            let stop = match step.code {
                Code::End => Stop::End,
                Code::Ok if step.is_at_boundary && step.is_after_last => continue, // to the end, which needs no input
                Code::Ok | Code::NoProgress if step.is_at_boundary => {
                    debug_assert!(step.unused_bits < 8, "zlib-rs returns whole bytes that it does not need");
                    Stop::Block { unused_bits: step.unused_bits & 7 }
                }
                Code::Ok | Code::NoProgress => Stop::Pause,
                Code::Malformed => return Err(Malformed),
            };
            return Ok(Progress { taken, given, stop });
        }
    }
}

impl Default for Inflate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;

//! From encoded bytes of a layer to decoded ones: whole layers as a stream, single chunks in one call.
//!
//! Nothing is believed about sizes: a decoder stops after the bytes that were asked for, and memory follows what was asked
//! for, never what the data claims.

mod chunk;
mod stream;

use std::fmt;

pub use chunk::{ChunkDecoder, DecodeError, decode_chunk};
pub use stream::LayerReader;

/// How a layer's blob is compressed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// A bare tar.
    None,
    /// One or more gzip members.
    Gzip,
    /// One or more zstd frames, skippable ones among them.
    Zstd,
}

/// Bytes that [`Compression::sniff`] looks at.
pub const SNIFF_BYTES: usize = 4;

impl Compression {
    /// By the first [`SNIFF_BYTES`] bytes of the blob, as every runtime does: media types are often wrong about it.
    pub fn sniff(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "tar",
            Self::Gzip => "tar+gzip",
            Self::Zstd => "tar+zstd",
        })
    }
}

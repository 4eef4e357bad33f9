//! [`Checkpoint`]: the state to start decoding in the middle of a deflate stream.

use serde::{Deserialize, Serialize};

/// Longest back reference of deflate (RFC 1951).
pub const WINDOW_BYTES: usize = 32 << 10;
/// Most of a window is zeros, and indexes are written once and fetched often. Higher levels save 1 % and take ten times as long.
pub(super) const WINDOW_LEVEL: i32 = 9;
/// For windows of a received index that are stored here: a user waits for it, and a large layer has thousands.
pub(crate) const FAST_WINDOW_LEVEL: i32 = 1;

/// The beginning of a span that is in the middle of a gzip member, at the boundary of two deflate blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// First byte of the blob that belongs to the span.
    pub offset: u64,
    /// Low bits of that byte that belong to the block before: 0 to 7.
    pub used_bits: u8,
    /// The [`WINDOW_BYTES`] before the span that deflate refers to, with zeros where the span does not, as zstd.
    pub window: Box<[u8]>,
}

impl Checkpoint {
    /// Whether it is possible in a blob of `blob_bytes`, as far as that shows without decoding its window.
    pub(crate) fn is_possible(&self, blob_bytes: u64) -> bool {
        const WINDOW: u64 = WINDOW_BYTES as u64;
        let window = zstd::zstd_safe::get_frame_content_size(&self.window);
        self.offset < blob_bytes && self.used_bits < 8 && matches!(window, Ok(Some(WINDOW)))
    }
}

/// The window is not [`WINDOW_BYTES`] of zstd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the window of a checkpoint cannot be read")]
pub(crate) struct InvalidWindow;

/// Encodes a window.
pub(crate) fn pack(window: &[u8; WINDOW_BYTES], level: i32) -> Box<[u8]> {
    // Compression into a buffer of sufficient size cannot fail. An empty window makes the span unreadable, not wrong.
    zstd::bulk::compress(window, level).unwrap_or_default().into()
}

/// Decodes a window to the end of `out`.
pub(crate) fn unpack(window: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidWindow> {
    let start = out.len();
    out.resize(start + WINDOW_BYTES, 0);
    match zstd::bulk::decompress_to_buffer(window, &mut out[start..]) {
        Ok(WINDOW_BYTES) => Ok(()),
        _ => Err(InvalidWindow),
    }
}

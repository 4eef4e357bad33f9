//! Spans whose encoded bytes are compared and whose content is not, as those of SOCI.
//!
//! Nothing shows what another process makes of them, so the process that uses them decodes them itself. It has the rights of the server:
//! miniz_oxide is slower than zlib-rs, and has no unsafe code.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};
use tarpon_oci::limits;

use super::chunk::{DecodeError, bounded, gzip_body, malformed};
use crate::chunks::CheckpointEntry;
use crate::spans::{WINDOW_BYTES, unpack};

/// As [`decode_span`](super::decode_span), for [`Codec::CheckedSpan`](crate::Codec::CheckedSpan) in a process that is not confined.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_checked_span(
    checkpoint: &CheckpointEntry<'_>,
    encoded: &[u8],
    skip: u64,
    size: u64,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let size = bounded(skip, size, limits::MEMBER_BYTES)?;
    let skip = usize::try_from(skip).map_err(|_| DecodeError::TooLarge)?;
    out.clear();
    unpack(checkpoint.window, out).map_err(|error| malformed("gzip", error))?;
    out.resize(WINDOW_BYTES + skip + size, 0);
    inflate(checkpoint.used_bits, encoded, out)?;
    out.drain(..WINDOW_BYTES + skip);
    Ok(())
}

/// Fills `out` after its window.
fn inflate(used_bits: u8, encoded: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let (mut inflate, mut rest) = start(used_bits, encoded);
    let mut filled = WINDOW_BYTES;
    while filled < out.len() {
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, taken, given) = decompress(&mut inflate, rest, out, filled, flags);
        filled += given;
        rest = &rest[taken..];
        let missing = (out.len() - filled) as u64;
        match status {
            _ if missing == 0 => break,
            // The next member, behind checksum and length. The digest of the chunk is the check.
            TINFLStatus::Done => {
                let next = rest.get(8..).filter(|next| !next.is_empty()).ok_or(DecodeError::TooShort { missing })?;
                rest = gzip_body(next)?;
                inflate.init();
            }
            TINFLStatus::FailedCannotMakeProgress | TINFLStatus::NeedsMoreInput => {
                return Err(DecodeError::TooShort { missing });
            }
            _ => return Err(malformed("gzip", "malformed deflate")),
        }
    }
    Ok(())
}

/// A decoder after the span's bits of the first byte, and the bytes after that byte.
fn start(used_bits: u8, encoded: &[u8]) -> (Box<DecompressorOxide>, &[u8]) {
    let mut state = BlockBoundaryState::default();
    let mut rest = encoded;
    if let (1..=7, Some((first, after))) = (used_bits, encoded.split_first()) {
        (state.num_bits, state.bit_buf) = (8 - used_bits, first >> used_bits);
        rest = after;
    }
    (Box::new(DecompressorOxide::from_block_boundary_state(&state)), rest)
}

//! Decodes one chunk of a layer from the bytes of its [`ChunkPlace`](crate::ChunkPlace).

use std::cell::RefCell;

use flate2::{Decompress, FlushDecompress, Status};
use tarpon_oci::limits;
use zstd::zstd_safe::{self, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::prefix;
use crate::chunks::CheckpointEntry;
use crate::index::Codec;
use crate::spans::{WINDOW_BYTES, skip_header, unpack};

/// Buffer size for decoded bytes before a chunk, which are discarded.
const SCRATCH_BYTES: usize = 64 << 10;
/// A zstd context that a large window has grown beyond this is not kept.
const KEPT_CONTEXT_BYTES: usize = 4 << 20;

/// Why a chunk could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The encoded bytes end before the chunk does.
    #[error("the encoded bytes end {missing} bytes before the chunk does")]
    TooShort {
        /// Decoded bytes that are missing.
        missing: u64,
    },
    /// The bytes do not match the codec.
    #[error("malformed {codec}: {problem}")]
    Malformed {
        /// `gzip` or `zstd`.
        codec: &'static str,
        /// The message of the decoder.
        problem: String,
    },
    /// Over [`limits::CHUNK_BYTES`] or, with the bytes before it, [`limits::MEMBER_BYTES`].
    #[error("the chunk is larger than this program decodes at once")]
    TooLarge,
    /// Another process could not decode the bytes.
    #[error("{problem}")]
    Elsewhere {
        /// Its error.
        problem: String,
    },
    /// The process that decodes has failed.
    #[error("{problem}")]
    Process {
        /// What happened to it.
        problem: String,
    },
    /// [`Codec::Stream`] has no random access; [`Codec::Deflate`] and [`Codec::CheckedSpan`] have none without a checkpoint.
    #[error("the layer can only be decoded from its beginning")]
    NotSeekable,
}

/// Decodes chunks. Keeps its contexts and windows from one to the next.
pub struct ChunkDecoder {
    inflate: Decompress,
    zstd: Option<DCtx<'static>>,
    scratch: Box<[u8]>,
    /// The window of a span.
    window: Vec<u8>,
}

impl Default for ChunkDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkDecoder {
    /// A decoder without any zstd context yet.
    pub fn new() -> Self {
        let scratch = vec![0; SCRATCH_BYTES].into_boxed_slice();
        Self { inflate: Decompress::new(false), zstd: None, scratch, window: Vec::with_capacity(WINDOW_BYTES) }
    }

    /// Replaces the content of `out` by exactly `size` bytes: those that follow the first `skip` decoded bytes of `encoded`. Stops
    /// there and ignores the rest of `encoded`. The bytes are not verified: compare their digest.
    ///
    /// # Errors
    /// [`DecodeError`]. The content of `out` is then undefined.
    pub fn decode(
        &mut self,
        codec: Codec,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let within = if codec == Codec::Raw { u64::MAX } else { limits::MEMBER_BYTES };
        let size = bounded(skip, size, within)?;
        if codec == Codec::Raw {
            let missing = (skip + size as u64).saturating_sub(encoded.len() as u64);
            let bytes = usize::try_from(skip).ok().and_then(|skip| encoded.get(skip..skip + size));
            out.clear();
            out.extend_from_slice(bytes.ok_or(DecodeError::TooShort { missing })?);
            return Ok(());
        }
        // Keeps the content: only a buffer that grows is filled with zeros.
        out.resize(size, 0);
        match codec {
            Codec::Gzip => self.gzip(encoded, skip, out),
            Codec::Zstd => self.zstd(encoded, skip, out),
            Codec::Raw | Codec::Deflate | Codec::CheckedSpan | Codec::Stream => Err(DecodeError::NotSeekable),
        }
    }

    /// As [`ChunkDecoder::decode`] for [`Codec::Deflate`] and [`Codec::CheckedSpan`]: `encoded` begins with the byte at the checkpoint's
    /// offset.
    ///
    /// # Errors
    /// [`DecodeError`]. The content of `out` is then undefined.
    pub fn decode_span(
        &mut self,
        checkpoint: &CheckpointEntry<'_>,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        out.resize(bounded(skip, size, limits::MEMBER_BYTES)?, 0);
        self.window.clear();
        unpack(checkpoint.window, &mut self.window).map_err(|error| malformed("gzip", error))?;
        self.inflate.reset(false);
        self.inflate.set_dictionary(&self.window).map_err(|error| malformed("gzip", error))?;
        let rest = self.align(checkpoint.used_bits, encoded)?;
        self.members(rest, skip, out)
    }

    /// Consumes the bits of the first byte that follow the `used_bits`, and returns the bytes after it.
    fn align<'a>(&mut self, used_bits: u8, encoded: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let (1..=7, Some((first, rest))) = (used_bits, encoded.split_first()) else { return Ok(encoded) };
        let prefix = prefix::ending_with(used_bits, *first);
        let status = self.inflate.decompress(prefix.bytes(), &mut self.scratch, FlushDecompress::None);
        status.map_err(|error| malformed("gzip", error))?;
        Ok(rest)
    }

    fn gzip(&mut self, encoded: &[u8], skip: u64, out: &mut [u8]) -> Result<(), DecodeError> {
        let rest = gzip_body(encoded)?;
        self.inflate.reset(false);
        self.members(rest, skip, out)
    }

    /// Decodes up to the end of `out`: the rest of the member that was begun, and the members behind it.
    fn members(&mut self, mut rest: &[u8], mut skip: u64, out: &mut [u8]) -> Result<(), DecodeError> {
        let mut filled = 0;
        while skip > 0 || filled < out.len() {
            let target = match usize::try_from(skip) {
                Ok(0) => &mut out[filled..],
                Ok(skip) => &mut self.scratch[..skip.min(SCRATCH_BYTES)],
                Err(_) => &mut self.scratch[..],
            };
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(rest, target, FlushDecompress::None);
            let status = status.map_err(|error| malformed("gzip", error))?;
            let taken = usize::try_from(self.inflate.total_in() - before_in).unwrap_or(rest.len());
            let given = self.inflate.total_out() - before_out;
            rest = &rest[taken..];
            if skip > 0 {
                skip -= given;
            } else {
                filled += usize::try_from(given).unwrap_or(0);
            }
            let missing = skip + (out.len() - filled) as u64;
            match status {
                _ if missing == 0 => break,
                // The next member, behind checksum and length. The digest of the chunk is the check.
                Status::StreamEnd => {
                    rest = rest.get(8..).filter(|rest| !rest.is_empty()).ok_or(DecodeError::TooShort { missing })?;
                    rest = gzip_body(rest)?;
                    self.inflate.reset(false);
                }
                Status::Ok | Status::BufError if taken == 0 && given == 0 => {
                    return Err(DecodeError::TooShort { missing });
                }
                Status::Ok | Status::BufError => {}
            }
        }
        Ok(())
    }

    fn zstd(&mut self, encoded: &[u8], skip: u64, out: &mut [u8]) -> Result<(), DecodeError> {
        let context = match &mut self.zstd {
            Some(context) => context,
            none => none.insert(new_context()?),
        };
        // Whole frames are decoded straight into `out`, without a window in between. zstd:chunked writes them so. If this fails
        // (foreign data behind the chunk, or before it), the chunk is decoded as a stream.
        if skip == 0 && context.decompress(out, encoded) == Ok(out.len()) {
            return Ok(());
        }
        let done = zstd_stream(context, &mut self.scratch, encoded, skip, out);
        if context.sizeof() > KEPT_CONTEXT_BYTES {
            self.zstd = None;
        }
        done
    }
}

/// Decodes up to the end of `out`, through a window.
fn zstd_stream(
    context: &mut DCtx<'static>,
    scratch: &mut [u8],
    encoded: &[u8],
    mut skip: u64,
    out: &mut [u8],
) -> Result<(), DecodeError> {
    context.reset(ResetDirective::SessionOnly).map_err(zstd_error)?;
    let mut input = InBuffer::around(encoded);
    let mut filled = 0;
    while skip > 0 || filled < out.len() {
        let target = match usize::try_from(skip) {
            Ok(0) => &mut out[filled..],
            Ok(skip) => &mut scratch[..skip.min(SCRATCH_BYTES)],
            Err(_) => &mut scratch[..],
        };
        let before = input.pos();
        let mut output = OutBuffer::around(target);
        context.decompress_stream(&mut output, &mut input).map_err(zstd_error)?;
        let given = output.pos();
        if skip > 0 {
            skip -= given as u64;
        } else {
            filled += given;
        }
        if given == 0 && input.pos() == before {
            return Err(DecodeError::TooShort { missing: skip + (out.len() - filled) as u64 });
        }
    }
    Ok(())
}

/// As [`ChunkDecoder::decode`], with a decoder that is kept per thread.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_chunk(codec: Codec, encoded: &[u8], skip: u64, size: u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    DECODER.with_borrow_mut(|decoder| decoder.decode(codec, encoded, skip, size, out))
}

/// As [`ChunkDecoder::decode_span`], with a decoder that is kept per thread.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_span(
    checkpoint: &CheckpointEntry<'_>,
    encoded: &[u8],
    skip: u64,
    size: u64,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    DECODER.with_borrow_mut(|decoder| decoder.decode_span(checkpoint, encoded, skip, size, out))
}

thread_local! {
    static DECODER: RefCell<ChunkDecoder> = RefCell::new(ChunkDecoder::new());
}

/// `size`, if it and the bytes before it are not more than may be decoded at once.
pub(super) fn bounded(skip: u64, size: u64, within: u64) -> Result<usize, DecodeError> {
    let end = skip.checked_add(size).filter(|end| *end <= within && size <= limits::CHUNK_BYTES);
    end.and_then(|_| usize::try_from(size).ok()).ok_or(DecodeError::TooLarge)
}

fn new_context() -> Result<DCtx<'static>, DecodeError> {
    let mut context = DCtx::try_create()
        .ok_or_else(|| DecodeError::Malformed { codec: "zstd", problem: "no memory for a decoder".to_owned() })?;
    context.set_parameter(DParameter::WindowLogMax(limits::ZSTD_CHUNK_WINDOW_LOG)).map_err(zstd_error)?;
    Ok(context)
}

fn zstd_error(code: zstd_safe::ErrorCode) -> DecodeError {
    malformed("zstd", zstd_safe::get_error_name(code))
}

pub(super) fn malformed(codec: &'static str, problem: impl ToString) -> DecodeError {
    DecodeError::Malformed { codec, problem: problem.to_string() }
}

/// Returns the bytes after the header of the gzip member at the start of `bytes`.
pub(super) fn gzip_body(mut bytes: &[u8]) -> Result<&[u8], DecodeError> {
    skip_header(&mut bytes).map_err(|error| malformed("gzip", error))?;
    Ok(bytes)
}

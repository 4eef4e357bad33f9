//! From the encoded bytes of a piece to verified chunks.

use std::io::Read;

use bytes::Bytes;
use tarpon_layer::Codec;
use tarpon_oci::{Verified, limits};

use crate::plan::Piece;

/// Decodes the piece and checks each of its chunks. A chunk that does not match its digest is `None`; bytes that are
/// not even of the right form are an error.
pub(crate) fn piece(piece: &Piece, encoded: &Bytes) -> Result<Vec<Option<Verified<Bytes>>>, String> {
    let decoded = decoded(piece, encoded)?;
    let chunk = |skip: u64, size: u64| {
        let start = usize::try_from(skip).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        (end <= decoded.len()).then(|| decoded.slice(start..end))
    };
    let checked = piece.chunks.iter().map(|c| Verified::check(&c.digest, chunk(c.skip, c.size)?).ok());
    Ok(checked.collect())
}

fn decoded(piece: &Piece, encoded: &Bytes) -> Result<Bytes, String> {
    let size = piece.decoded_bytes();
    if size > 2 * limits::CHUNK_BYTES {
        return Err(format!("a piece of {size} bytes"));
    }
    let mut out = Vec::new();
    let read = match piece.key.codec {
        Codec::Raw => return Ok(encoded.clone()),
        Codec::Gzip => flate2::bufread::MultiGzDecoder::new(&encoded[..]).take(size).read_to_end(&mut out),
        Codec::Zstd => zstd::Decoder::with_buffer(&encoded[..]).and_then(|d| d.take(size).read_to_end(&mut out)),
        Codec::Stream => return Err("no random access".into()),
    };
    read.map_err(|error| error.to_string())?;
    Ok(out.into())
}

//! Decodes the encoded bytes of a piece to verified chunks.

use bytes::Bytes;
use tarpon_layer::Codec;
use tarpon_layer::decode::{DecodeError, Decoder, decode_checked_span};
use tarpon_oci::Verified;

use crate::chunk::PieceChunk;
use crate::plan::Piece;

/// The outcome of one chunk of a piece.
#[derive(Clone)]
pub(crate) enum Decoded {
    /// Its digest matched.
    Bytes(Verified<Bytes>),
    /// Its digest did not match.
    Wrong,
    /// It came along unneeded, and is local already.
    Here,
}

/// Why a piece has no chunks.
pub(crate) enum NotDecoded {
    /// The bytes are wrong.
    Wrong(String),
    /// The process that decodes has failed.
    Failed(String),
}

/// Decodes the piece and checks each of its chunks (or, before that, the encoded bytes that all of them come from), except those
/// that `is_here` returns as local. The first one, which was requested, is always checked. Bytes of invalid form are an error.
pub(crate) fn piece(
    decoder: &dyn Decoder,
    piece: &Piece,
    encoded: &Bytes,
    is_here: impl Fn(&PieceChunk) -> bool,
) -> Result<Vec<Decoded>, NotDecoded> {
    check_encoded(piece, encoded).map_err(NotDecoded::Wrong)?;
    // Bytes before the first chunk are not needed.
    let start = piece.chunks.iter().map(|chunk| chunk.skip).min().unwrap_or(0);
    let size = piece.decoded_bytes().saturating_sub(start);
    let mut decoded = Vec::new();
    part(decoder, piece, encoded, start, size, &mut decoded)?;
    let decoded = Bytes::from(decoded);
    let of_chunk = |skip: u64, size: u64| {
        let from = usize::try_from(skip.checked_sub(start)?).ok()?;
        let to = from.checked_add(usize::try_from(size).ok()?)?;
        // Several chunks get a copy each: one that stays in memory must not keep all of them allocated.
        let copy = piece.chunks.len() > 1;
        (to <= decoded.len())
            .then(|| if copy { Bytes::copy_from_slice(&decoded[from..to]) } else { decoded.slice(from..to) })
    };
    let first = piece.chunks.first().map(|chunk| chunk.digest);
    let check = |chunk: &PieceChunk| {
        let bytes = of_chunk(chunk.skip, chunk.size)?;
        match chunk.names_content {
            true => Verified::check(&chunk.digest, bytes).ok(),
            // It was decoded from the encoded bytes that were compared.
            false => (Some(chunk.digest) == first).then(|| Verified::seal(bytes)),
        }
    };
    let checked = piece.chunks.iter().enumerate().map(|(number, chunk)| match () {
        () if number > 0 && is_here(chunk) => Decoded::Here,
        () => check(chunk).map_or(Decoded::Wrong, Decoded::Bytes),
    });
    Ok(checked.collect())
}

/// Decodes `size` bytes of the piece, those behind the first `skip` ones. `encoded` may end where they do.
pub(crate) fn part(
    decoder: &dyn Decoder,
    piece: &Piece,
    encoded: &Bytes,
    skip: u64,
    size: u64,
    out: &mut Vec<u8>,
) -> Result<(), NotDecoded> {
    let checkpoint = || {
        let checkpoint = piece.image.table.checkpoint(piece.layer, piece.key.offset);
        checkpoint.ok_or_else(|| NotDecoded::Wrong("the index has no checkpoint for it".into()))
    };
    let outcome = match piece.key.codec {
        // The encoded bytes were compared, and what comes of them is compared with nothing: no other process may have its say.
        Codec::CheckedSpan => decode_checked_span(&checkpoint()?, encoded, skip, size, out),
        Codec::Deflate => decoder.span(&checkpoint()?, encoded, skip, size, out),
        codec => decoder.chunk(codec, encoded, skip, size, out),
    };
    outcome.map_err(|error| match error {
        DecodeError::Process { problem } => NotDecoded::Failed(problem),
        error => NotDecoded::Wrong(error.to_string()),
    })
}

/// Checks the encoded piece where the chunks' digest is that of it. Nothing is decoded before.
fn check_encoded(piece: &Piece, encoded: &Bytes) -> Result<(), String> {
    match piece.chunks.first() {
        Some(chunk) if !chunk.names_content => {
            Verified::check(&chunk.digest, encoded).map(drop).map_err(|error| format!("encoded bytes: {error}"))
        }
        _ => Ok(()),
    }
}

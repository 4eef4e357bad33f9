//! Decodes the encoded bytes of a piece to verified chunks.

use bytes::Bytes;
use tarpon_layer::Codec;
use tarpon_layer::decode::Decoder;
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

/// Decodes the piece and checks each of its chunks (or, before that, the encoded bytes that all of them come from), except those
/// that `is_here` returns as local. The first one, which was requested, is always checked. Bytes of invalid form are an error.
pub(crate) fn piece(
    decoder: &dyn Decoder,
    piece: &Piece,
    encoded: &Bytes,
    is_here: impl Fn(&PieceChunk) -> bool,
) -> Result<Vec<Decoded>, String> {
    check_encoded(piece, encoded)?;
    // Bytes before the first chunk are not needed.
    let start = piece.chunks.iter().map(|chunk| chunk.skip).min().unwrap_or(0);
    let size = piece.decoded_bytes().saturating_sub(start);
    let mut decoded = Vec::new();
    let outcome = match piece.key.codec {
        Codec::Deflate | Codec::CheckedSpan => {
            let checkpoint = piece.image.table.checkpoint(piece.layer, piece.key.offset);
            let checkpoint = checkpoint.ok_or("the index has no checkpoint for it")?;
            decoder.span(&checkpoint, encoded, start, size, &mut decoded)
        }
        codec => decoder.chunk(codec, encoded, start, size, &mut decoded),
    };
    outcome.map_err(|error| error.to_string())?;
    let decoded = Bytes::from(decoded);
    let part = |skip: u64, size: u64| {
        let from = usize::try_from(skip.checked_sub(start)?).ok()?;
        let to = from.checked_add(usize::try_from(size).ok()?)?;
        // Several chunks get a copy each: one that stays in memory must not keep all of them allocated.
        let copy = piece.chunks.len() > 1;
        (to <= decoded.len())
            .then(|| if copy { Bytes::copy_from_slice(&decoded[from..to]) } else { decoded.slice(from..to) })
    };
    let first = piece.chunks.first().map(|chunk| chunk.digest);
    let check = |chunk: &PieceChunk| {
        let bytes = part(chunk.skip, chunk.size)?;
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

/// Checks the encoded piece where the chunks' digest is that of it. Nothing is decoded before.
fn check_encoded(piece: &Piece, encoded: &Bytes) -> Result<(), String> {
    match piece.chunks.first() {
        Some(chunk) if !chunk.names_content => {
            Verified::check(&chunk.digest, encoded).map(drop).map_err(|error| format!("encoded bytes: {error}"))
        }
        _ => Ok(()),
    }
}

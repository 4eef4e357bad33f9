//! The first chunk of a piece, delivered before the rest of the piece has arrived.
//!
//! A span of a plain gzip layer has about 1 MiB of files, and a reader waits for one of them. On most links the encoded bytes take much
//! longer to arrive than to decode: at 100 Mbit/s 400 KiB take 33 ms, decoding a MiB 2 ms. So what has arrived is decoded once it is
//! likely to contain the chunk. The rest of the span follows and is checked and kept as ever.
//!
//! Where a chunk ends in the encoded piece is not known, only where it ends in the decoded one. The estimate is wrong if the files before
//! it compress better or worse than those behind it. A second attempt follows then, and after that the chunk waits for the whole piece.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tarpon_layer::Codec;
use tarpon_oci::Verified;

use crate::body::Body;
use crate::decode;
use crate::error::PieceError;
use crate::flight::Flight;
use crate::host::FetchHost;
use crate::lanes::Lane;
use crate::plan::Piece;

/// Decoded bytes per second of one core of a busy machine: half of what was measured on an idle one.
const DECODED_PER_SECOND: u64 = 320 << 20;
/// An attempt must save more than this many times the processor time that it takes: it may fail, and the processor may be what the
/// program waits for.
const WORTH: u32 = 3;
/// The largest piece, encoded or decoded, of which a part is decoded: spans have about 1 MiB. An attempt has a copy of the part, so
/// [`FIRST_CHUNKS`](crate::config::FIRST_CHUNKS) of them take at most 64 MiB beside what requests may.
const LARGEST: u64 = 4 << 20;
/// Bytes of each attempt beyond the estimate, for the codes of a deflate block that the chunk ends in the middle of.
const MARGIN: u64 = 8 << 10;

impl FetchHost {
    /// Receives the encoded bytes of a flight, and delivers its first chunk as soon as possible.
    pub(crate) async fn receive(self: &Arc<Self>, body: &mut Body, flight: &Arc<Flight>) -> Result<Bytes, PieceError> {
        let (range, mut whole) = (flight.piece.range(), BytesMut::new());
        for end in attempts(flight) {
            let from = range.start + whole.len() as u64;
            whole.extend_from_slice(&body.take(from..range.start + end, flight.lane).await?);
            if flight.has_first() {
                break;
            }
            if let Ok(permit) = self.first_chunks.clone().try_acquire_owned() {
                let (host, flight, part) = (self.clone(), flight.clone(), Bytes::copy_from_slice(&whole));
                self.runtime.spawn_blocking(move || {
                    host.decode_first(&flight, &part);
                    drop(permit);
                });
            }
        }
        if whole.is_empty() {
            return body.take(range, flight.lane).await;
        }
        let from = range.start + whole.len() as u64;
        whole.extend_from_slice(&body.take(from..range.end, flight.lane).await?);
        Ok(whole.freeze())
    }

    /// Delivers the first chunk if this part of the encoded bytes contains it.
    fn decode_first(&self, flight: &Flight, part: &Bytes) {
        let piece = &flight.piece;
        let (Some(first), false) = (piece.chunks.first(), flight.is_settled() || flight.has_first()) else { return };
        let mut decoded = Vec::new();
        // On an error it is not there yet. Wrong bytes show when the whole piece is checked.
        if decode::part(&*self.config.decoder, piece, part, first.skip, first.size, &mut decoded).is_ok()
            && let Ok(bytes) = Verified::check(&first.digest, Bytes::from(decoded))
        {
            // Before a reader gets it: see `early.rs`.
            piece.image.brought(flight.lane, first);
            self.flights.deliver_first(flight, bytes);
        }
    }
}

/// The lengths of the encoded bytes with which to attempt to decode the first chunk, ascending.
fn attempts(flight: &Flight) -> impl Iterator<Item = u64> + use<> {
    let piece = &flight.piece;
    // What comes of a checked span is compared with nothing, so all of it must have arrived.
    let is_checked_by_itself = matches!(piece.key.codec, Codec::Deflate | Codec::Gzip | Codec::Zstd);
    let may = is_checked_by_itself
        && flight.lane == Lane::Demand
        && piece.memory() <= LARGEST
        && !piece.image.source.is_local();
    let bandwidth = piece.image.governor.link.bandwidth();
    let (estimates, needed, length) = (estimates(piece), needed(piece), length(piece));
    estimates.into_iter().filter(move |at| may && is_worth_it(needed, length.saturating_sub(*at), bandwidth))
}

/// Decoded bytes up to the end of the first chunk.
fn needed(piece: &Piece) -> u64 {
    piece.chunks.first().map_or(0, |first| first.skip.saturating_add(first.size))
}

/// Where the first chunk is likely to have ended, and half-way from there to the end.
fn estimates(piece: &Piece) -> [u64; 2] {
    let (length, decoded) = (length(piece), u128::from(piece.decoded_bytes().max(1)));
    let proportional = u64::try_from(u128::from(length) * u128::from(needed(piece)) / decoded).unwrap_or(u64::MAX);
    let first = proportional.saturating_add(proportional / 8).saturating_add(MARGIN).min(length);
    [first, first + (length - first) / 2]
}

/// Encoded bytes of the piece that its blob has.
fn length(piece: &Piece) -> u64 {
    let range = piece.range();
    range.end.saturating_sub(range.start)
}

/// Whether the `rest` of a piece takes so much longer to arrive than decoding what is `needed`. Yes, if the link is not known.
fn is_worth_it(needed: u64, rest: u64, bandwidth: Option<u64>) -> bool {
    let Some(bandwidth) = bandwidth else { return rest > 0 };
    let time = |bytes: u64, per_second: u64| Duration::from_micros(bytes.saturating_mul(1_000_000) / per_second.max(1));
    time(rest, bandwidth) > WORTH * time(needed, DECODED_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_pays_where_the_link_is_much_slower_than_the_processor() {
        let [half, most] = [512 << 10, 900 << 10];
        let [slow, fast] = [3 << 20, 110 << 20].map(Some);
        assert!(is_worth_it(half, 200 << 10, slow) && is_worth_it(half, 200 << 10, None));
        assert!(!is_worth_it(half, 200 << 10, fast), "1.8 ms against three times 1.6 ms");
        assert!(is_worth_it(16 << 10, 400 << 10, fast), "one at the beginning of its span");
        assert!(!is_worth_it(most, 20 << 10, slow) && !is_worth_it(0, 0, None));
    }
}

//! Neighbours: the bytes behind a small piece that a reader waits for, fetched in the same request.
//!
//! A program that imports modules reads small files one after the other, each with a request of its own. During the round trip of
//! that request the link idles. Archives keep the files of a folder together, so the bytes behind the piece are likely to be wanted
//! soon, and as much of them as arrives in one round trip delays no reader: the reader gets its own piece first, and the first byte
//! of its next request cannot arrive sooner than a round trip later.
//!
//! Invariant: of an image, neighbours are at most as many bytes as readers' own pieces: a start that uses none of them has fetched at
//! most twice as much. With half of this limit, the start of a Flask application from an eStargz image made 1.7 times as many requests.

use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::chunk;
use crate::config::ALONG_STALL_SHARE;
use crate::flight::Flight;
use crate::host::FetchHost;
use crate::pieces::{piece_in_layer, placed};
use crate::plan::Piece;
use crate::prefetch::governor::link::Link;
use crate::prefetch::rules::{Prefetcher, Step};

/// Most bytes that come along with one piece: a link of 100 Mbit/s transfers them in 80 ms.
const MOST_BYTES: u64 = 1 << 20;
/// Most memory of neighbours: data that compresses a hundredfold must not take the room of other readers.
const MOST_MEMORY: u64 = 4 << 20;
/// Encoded bytes of small files per second that one core inflates, hashes and writes while the program has the other: half the rate
/// of indexing a layer of 12,700 files (35 MB/s). Behind a round trip of 1 ms the processor is the bottleneck.
const WORK_RATE: u64 = 16 << 20;
/// Chunks that are looked up behind one piece: each is a disk access of some microseconds, before the request is sent.
const LOOKUPS: usize = 64;

/// Bytes that the link and the processor can handle during a round trip. None before the link is known.
fn in_a_round_trip(link: &Link) -> u64 {
    let rate = u128::from(link.bandwidth().unwrap_or_default().min(WORK_RATE));
    let bytes = rate * link.round_trip().as_micros() / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).min(MOST_BYTES)
}

impl FetchHost {
    /// The neighbours to fetch behind these pieces, if a reader has to wait for them.
    pub(crate) fn neighbours(&self, pieces: &[Piece]) -> Vec<Piece> {
        let [piece] = pieces else { return Vec::new() };
        let image = &piece.image;
        if piece.key.length > self.config.whole_object_bytes || piece.needs_stream() || piece.is_of_a_pack() {
            return Vec::new();
        }
        let most = in_a_round_trip(&image.governor.link).min(image.prefetch.allowance.left());
        if most == 0
            || image.is_distrusted(piece.layer)
            || !image.prefetch.may(Prefetcher::Neighbours, Step::Begin)
            || self.flights.is_flying(&piece.key)
        {
            return Vec::new();
        }
        self.behind(piece, most)
    }

    /// The adjacent pieces behind this one that are whole files and not local, up to `most` bytes from its end.
    fn behind(&self, piece: &Piece, most: u64) -> Vec<Piece> {
        let (image, mut end, mut memory) = (&piece.image, piece.range().end, 0);
        let (last, mut taken) = (end.saturating_add(most), piece.key.offset);
        let mut found: Vec<Piece> = Vec::new();
        for number in image.table.by_place(piece.layer, taken + 1..last).take(LOOKUPS) {
            let Some((file, offset)) = placed(image, number).filter(|(chunk, _)| chunk.is_whole_object()) else {
                break;
            };
            if offset == taken {
                continue; // it comes with the piece
            }
            if !chunk::is_next(end, offset, self.config.coalesce_gap) {
                break;
            }
            if self.is_here(image, &file) {
                continue;
            }
            let Some(next) = piece_in_layer(image, number) else { break };
            memory += next.memory();
            if next.range().is_empty() || next.range().end > last || memory > MOST_MEMORY {
                break;
            }
            (end, taken) = (next.range().end, offset);
            found.push(next);
        }
        found
    }

    /// Settles neighbours as their bytes arrive, after the pieces that the request was made for. Wrong or missing ones are
    /// requested again by the next reader.
    pub(crate) async fn take_neighbours(self: &Arc<Self>, mut body: Body, neighbours: &[Arc<Flight>]) {
        body.set_stall_limit(self.config.stall_limit / ALONG_STALL_SHARE);
        for flight in neighbours {
            let Ok(bytes) = body.take(flight.piece.range(), flight.lane).await else { return };
            flight.piece.image.governor.neighbour_arrived(bytes.len());
            let is_settled = self.clone().settle(flight.clone(), bytes, false).await.is_none();
            if is_settled && flight.piece.image.is_read_by_kernel() {
                // Their reads are not seen, so all of them count as read.
                for chunk in &flight.piece.chunks {
                    let range = chunk.object_offset..chunk.object_offset + chunk.size;
                    self.images.observe(&chunk.object, &range, Duration::ZERO);
                }
            }
        }
    }
}

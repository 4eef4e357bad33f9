//! Neighbours: what lies behind a small piece that a reader waits for, and comes along in his request.
//!
//! A program that imports modules reads small files one after the other, each with a request of its own; while that makes its round
//! trip, the link idles. Archives keep the files of a folder together, so what lies behind the piece is likely to be wanted soon,
//! and as much of it as comes in one round trip delays nobody: the reader has his own piece first, and the first byte that he asks for
//! next cannot come sooner than a round trip later.
//!
//! Invariant: of an image, neighbours are at most half as many bytes as readers' own pieces. A start that uses none of them has
//! fetched half as much again.

use std::sync::Arc;

use crate::body::Body;
use crate::chunk;
use crate::config::ALONG_STALL_SHARE;
use crate::flight::Flight;
use crate::governor::link::Link;
use crate::host::Host;
use crate::image::Image;
use crate::pieces::{piece_in_layer, placed};
use crate::plan::Piece;

/// The most that comes along with one piece: a link of 100 Mbit/s brings it in 80 ms.
const MOST_BYTES: u64 = 1 << 20;
/// The most memory that it takes: what compresses a hundredfold must not take the room of other readers.
const MOST_MEMORY: u64 = 4 << 20;
/// Encoded bytes of small files in a second that one core inflates, hashes and writes while the program has the other: half of what
/// indexing a layer of 12,700 files did (35 MB/s). Behind a round trip of 1 ms it is the processor that there is little of.
const WORK_RATE: u64 = 16 << 20;
/// Chunks that are looked at behind one piece: each is a glance at the disk, of some microseconds, before the request leaves.
const LOOKS: usize = 64;

/// Bytes that the link and the processor manage while a request makes its round trip. None before the link is known.
fn in_a_round_trip(link: &Link) -> u64 {
    let rate = u128::from(link.bandwidth().unwrap_or_default().min(WORK_RATE));
    let bytes = rate * link.round_trip().as_micros() / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).min(MOST_BYTES)
}

impl Host {
    /// What to bring behind these pieces, if a reader has to wait for them.
    pub(crate) fn neighbours(&self, pieces: &[Piece]) -> Vec<Piece> {
        let [piece] = pieces else { return Vec::new() };
        let image = &piece.image;
        if piece.key.length > self.config.whole_object_bytes || piece.needs_stream() || piece.is_of_a_pack() {
            return Vec::new();
        }
        let most = in_a_round_trip(&image.governor.link).min(image.allowance.left());
        if most == 0
            || image.is_distrusted(piece.layer)
            || self.gains_nothing(image)
            || self.flights.is_flying(&piece.key)
        {
            return Vec::new();
        }
        self.behind(piece, most)
    }

    /// Whether something else says what readers will want, or the link does not idle, or what comes is not kept.
    fn gains_nothing(&self, image: &Image) -> bool {
        image.pack.get().is_some_and(|pack| !pack.is_given_up())
            || image.governor.is_held()
            || image.governor.is_working()
            || image.source.is_local()
            || image.breaker.is_resting()
            || self.lanes.has_demand()
            || self.bypass.is_active()
    }

    /// The pieces next to each other behind this one that are whole files and not here, up to `most` bytes from its end.
    fn behind(&self, piece: &Piece, most: u64) -> Vec<Piece> {
        let (image, mut end, mut memory) = (&piece.image, piece.range().end, 0);
        let (last, mut taken) = (end.saturating_add(most), piece.key.offset);
        let mut found: Vec<Piece> = Vec::new();
        for number in image.table.by_place(piece.layer, taken + 1..last).take(LOOKS) {
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

    /// Settles neighbours as their bytes come in, behind what the request was made for. What is not right, or does not come, is asked for by
    /// whoever wants it.
    pub(crate) async fn bring_along(self: &Arc<Self>, mut body: Body, neighbours: &[Arc<Flight>]) {
        body.nobody_waits(self.config.stall_limit / ALONG_STALL_SHARE);
        for flight in neighbours {
            let Ok(bytes) = body.take(flight.piece.range(), flight.lane).await else { return };
            flight.piece.image.governor.came_along(bytes.len());
            let _is_wrong = self.clone().settle(flight.clone(), bytes, false).await;
        }
    }
}

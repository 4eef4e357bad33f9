//! Fetches the rest of an image: layer after layer, in large requests, with lower priority than what readers wait for.

use std::sync::Arc;

use super::state::LayerPosition;
use crate::chunk;
use crate::host::FetchHost;
use crate::image::Image;
use crate::pieces::{piece_in_layer, placed};
use crate::plan::Piece;
use crate::prefetch::open_requests::OpenRequests;
use crate::prefetch::rules::{Prefetcher, Step};

/// Requests at a time: while one ends, the round trips of the others are under way.
const REQUESTS: usize = 4;
/// The smallest request: a reader of its last bytes should not wait much longer than for a request of its own.
const LEAST_BYTES: u64 = 1 << 20;
/// A request covers the bytes that the link transfers in this many round trips. Together with [`REQUESTS`] this hides the round trips.
const ROUND_TRIPS: u64 = 8;
/// Chunks that one request looks up: each may be a disk access, and the check whether to go on runs between requests.
const LOOKUPS: usize = 16_384;

impl FetchHost {
    /// Fetches one request's worth, to measure the rate.
    pub(super) async fn measure_link(self: &Arc<Self>, image: &Arc<Image>) {
        if let Some((pieces, next)) = self.next_segment(image).await {
            image.governor.continue_at(next);
            let mut open_requests = OpenRequests::default();
            self.request_pieces(pieces, Prefetcher::WholeImage, &mut open_requests);
            open_requests.end().await;
        } else {
            image.governor.all_arrived();
        }
    }

    /// Fetches missing bytes until none are left, readers have been quiet, or the store or the source pauses. A reader that waits
    /// again finds the account unchanged, and the download continues from where it stopped.
    pub(super) async fn download_rest(self: &Arc<Self>, image: &Arc<Image>) {
        let mut open_requests = OpenRequests::default();
        let why = loop {
            if let Some(obstacle) = image.prefetch.obstacle(Prefetcher::WholeImage, Step::Next) {
                break obstacle.to_string();
            }
            let Some((pieces, next)) = self.next_segment(image).await else {
                image.governor.all_arrived();
                break "everything is local".to_owned();
            };
            image.governor.continue_at(next);
            self.request_pieces(pieces, Prefetcher::WholeImage, &mut open_requests);
            open_requests.fewer_than(REQUESTS).await;
        };
        open_requests.end().await;
        tracing::info!(image = %image.name, "the whole download ended: {why}");
    }

    /// The next segment to fetch, and the position behind it. `None` at the end. Accesses the disk, and may hash local bytes.
    async fn next_segment(self: &Arc<Self>, image: &Arc<Image>) -> Option<(Vec<Piece>, LayerPosition)> {
        let link = &image.governor.link;
        let in_a_second = u128::from(link.bandwidth().unwrap_or_default());
        let in_a_round_trip = in_a_second * link.round_trip().as_millis() / 1_000;
        let most = u64::try_from(in_a_round_trip).unwrap_or(u64::MAX).saturating_mul(ROUND_TRIPS);
        let most = most.max(LEAST_BYTES).min(self.config.range_bytes);
        let (host, of, from) = (self.clone(), image.clone(), image.governor.next());
        self.runtime.spawn_blocking(move || host.segment_from(&of, from, most)).await.ok()?
    }

    /// The first run of missing pieces from this position on, as long as no gap is too wide, and neither their encoded nor their
    /// decoded bytes exceed `most`.
    fn segment_from(
        self: &Arc<Self>,
        image: &Arc<Image>,
        from: LayerPosition,
        most: u64,
    ) -> Option<(Vec<Piece>, LayerPosition)> {
        let (mut pieces, mut room, mut lookups) = (Vec::<Piece>::new(), 0_u64, 0);
        let mut start = from.offset;
        for layer in from.layer..image.table.layer_count() {
            let mut taken = None;
            let numbers = image.table.by_place(layer, std::mem::take(&mut start)..u64::MAX);
            for number in numbers.take_while(|_| !image.is_distrusted(layer)) {
                let Some((chunk, offset)) = placed(image, number) else { continue };
                if taken == Some(offset) {
                    continue; // it comes with the piece
                }
                lookups += 1;
                let here = LayerPosition { layer, offset };
                // However many chunks share one place, the next request must begin behind it.
                if lookups > LOOKUPS && here > from {
                    return Some((pieces, here));
                }
                if !self.lacks(image, &chunk) {
                    continue;
                }
                let Some(piece) = piece_in_layer(image, number) else { continue };
                let needs = piece.memory();
                let is_far = |last: &Piece| !chunk::is_next(last.range().end, offset, self.config.coalesce_gap);
                if pieces.last().is_some_and(|last| is_far(last) || room.saturating_add(needs) > most) {
                    return Some((pieces, here));
                }
                taken = Some(offset);
                room = room.saturating_add(needs);
                pieces.push(piece);
            }
            if !pieces.is_empty() {
                return Some((pieces, LayerPosition { layer: layer.saturating_add(1), offset: 0 }));
            }
        }
        None
    }
}

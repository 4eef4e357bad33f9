//! Hints: the bytes that a start is likely to touch, for images without a recorded boot pack.
//!
//! A hint names a place to fetch first, by content (a trace) or by position (the landmark of an eStargz layer). The bytes are
//! fetched by range, checked and kept like all others. A wrong hint costs bandwidth, up to [`HINT_BYTES`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use tarpon_layer::{ChunkPlace, Codec, ObjectId};
use tarpon_oci::Digest;

use crate::chunk::PieceChunk;
use crate::host::FetchHost;
use crate::image::Image;
use crate::pieces::piece_in_layer;
use crate::plan::{self, Piece};
use crate::prefetch::open_requests::OpenRequests;
use crate::prefetch::policy::Predicting;
use crate::prefetch::replay::{REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES};
use crate::prefetch::rules::{Prefetcher, Step};

/// Encoded bytes that hints fetch of one image. A start waits for the bytes it touches first, which are fewer, and a landmark at
/// the end of a large layer must not turn a lazy mount into a download.
const HINT_BYTES: u64 = 256 << 20;
/// Requests at a time. The ranges of a trace are scattered, so most requests are small and cost little but their round trip.
pub(super) const REQUESTS: usize = 8;

/// A part of an image that is likely to be read soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A part of an object.
    Object {
        /// The object.
        object: ObjectId,
        /// The range in it.
        range: Range<u64>,
    },
    /// The start of a layer.
    LayerStart {
        /// Digest of the layer.
        layer: Digest,
        /// End of the range in its blob.
        until: u64,
    },
}

impl Image {
    /// Numbers of the chunks that the hints lead to, each once, in their order, up to [`HINT_BYTES`].
    pub(super) fn hinted(&self, hints: &[Hint]) -> Vec<u32> {
        let (mut seen, mut numbers, mut bytes) = (HashSet::new(), Vec::new(), 0_u64);
        for hint in hints {
            for number in self.led_to(hint) {
                let Some(length) = self.length_by_range(number).filter(|_| seen.insert(number)) else { continue };
                bytes = bytes.saturating_add(length);
                if bytes > HINT_BYTES {
                    return numbers;
                }
                numbers.push(number);
            }
        }
        numbers
    }

    fn led_to<'a>(&'a self, hint: &'a Hint) -> Box<dyn Iterator<Item = u32> + 'a> {
        let table = &self.table;
        match hint {
            Hint::LayerStart { layer, until } => {
                let is_it = |number: &u16| table.layer(*number).is_some_and(|known| known.blob.digest == *layer);
                let layer = (0..table.layer_count()).find(is_it);
                Box::new(layer.into_iter().flat_map(|layer| table.by_place(layer, 0..*until)))
            }
            Hint::Object { object, range } => {
                let first = |entry| Some((table.chunk_at(&entry, range.start)?, entry.chunks.end));
                let (first, end) = table.find(object).and_then(first).unwrap_or_default();
                let end_of_range = range.end;
                let is_in = move |number: &u32| {
                    table.chunk(*number).is_some_and(|entry| entry.chunk.object_offset < end_of_range)
                };
                Box::new((first..end).take_while(is_in))
            }
        }
    }

    /// Encoded bytes of a chunk that can be fetched by range and may be.
    fn length_by_range(&self, number: u32) -> Option<u64> {
        let entry = self.table.chunk(number)?;
        match entry.chunk.place {
            ChunkPlace::Blob { codec, length, .. } if codec != Codec::Stream && !self.is_distrusted(entry.layer) => {
                Some(length)
            }
            _ => None,
        }
    }
}

impl FetchHost {
    /// Fetches what the hints lead to, in their order, behind what readers wait for.
    pub(crate) async fn follow(self: Arc<Self>, image: Arc<Image>, hints: Vec<Hint>) {
        let _guard = Predicting::begin(&image.prefetch);
        image.prefetch.replay_end().await;
        let of = image.clone();
        let Ok(numbers) = self.runtime.spawn_blocking(move || Arc::new(of.hinted(&hints))).await else { return };
        let (mut next, mut most, mut open_requests) = (0, REPLAY_FIRST_BYTES, OpenRequests::default());
        let step = |next| if next == 0 { Step::First } else { Step::Next };
        while next < numbers.len() && image.prefetch.may(Prefetcher::Hints, step(next)) {
            // Accesses the disk, and may hash local bytes.
            let (host, of, from) = (self.clone(), (image.clone(), numbers.clone()), next);
            let segment = self.runtime.spawn_blocking(move || host.hinted_runs(&of.0, &of.1, from, most)).await;
            let Ok((runs, after)) = segment else { return };
            (next, most) = (after, (most * 2).min(REPLAY_MOST_BYTES));
            for run in runs {
                open_requests.fewer_than(REQUESTS).await;
                self.request_pieces(run, Prefetcher::Hints, &mut open_requests);
            }
        }
        open_requests.end().await;
    }

    /// The missing chunks from `next` on, about `most` bytes of them, as requests in the order of the first of their pieces, and
    /// the number of the chunk after them.
    fn hinted_runs(
        self: &Arc<Self>,
        image: &Arc<Image>,
        numbers: &[u32],
        mut next: usize,
        most: u64,
    ) -> (Vec<Vec<Piece>>, usize) {
        let (mut pieces, mut places, mut bytes) = (Vec::new(), HashMap::new(), 0_u64);
        while let Some(number) = numbers.get(next).filter(|_| bytes < most) {
            next += 1;
            let Some(piece) = self.lacking_piece(image, *number) else { continue };
            let place = places.len();
            if *places.entry(piece.key).or_insert(place) == place {
                bytes = bytes.saturating_add(piece.key.length);
                pieces.push(piece);
            }
        }
        let mut runs = plan::runs(pieces, &self.config);
        runs.sort_by_key(|run| run.iter().filter_map(|piece| places.get(&piece.key)).min().copied());
        (runs, next)
    }

    pub(super) fn lacking_piece(self: &Arc<Self>, image: &Arc<Image>, number: u32) -> Option<Piece> {
        let entry = image.table.chunk(number)?;
        let (id, object) = image.table.object(entry.object)?;
        let chunk = PieceChunk::new(id, &object, &entry.chunk);
        self.lacks(image, &chunk).then(|| piece_in_layer(image, number))?
    }
}

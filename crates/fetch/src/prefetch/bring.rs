//! Brings what the next start of an image will need into the store, before anything reads the image: a boot pack, or what hints lead to.
//!
//! Unlike a replay, it is waited for, has a rate, and reports what is still missing. What it brought is there for later processes too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tarpon_blob::{Pace, StoreError};
use tarpon_layer::ChunkPlace;
use tokio::time::timeout;

use crate::chunk::PieceChunk;
use crate::fetcher::ImageHandle;
use crate::host::FetchHost;
use crate::image::Image;
use crate::object::Object;
use crate::pack::BootIndex;
use crate::pack::places::{Pack, PackOrigin};
use crate::pieces::{piece_in_frame, piece_in_layer, placed};
use crate::plan::{self, Piece};
use crate::prefetch::hints::{self, Hint};
use crate::prefetch::open_requests::OpenRequests;
use crate::prefetch::policy::Predicting;
use crate::prefetch::replay::{REPLAY_FIRST_BYTES, REPLAY_MOST_BYTES, REPLAY_REQUESTS};
use crate::prefetch::rules::{Prefetcher, Step};

/// Least bytes of one request at a limited rate, if there are so many: smaller ones would be round trips only.
const PACED_BYTES: u64 = 64 << 10;
/// Of smaller objects a store holds parts in memory only, unless they are to last.
const SMALL_BYTES: u64 = 64 << 10;
/// Small objects that are held until their parts are made to last: 64 MiB.
const HELD: usize = 1024;

/// What the start of an image is likely to need.
#[derive(Debug, Clone)]
pub enum StartContent {
    /// The boot pack with this index, of a recorded or a predicted start. The image's source has its blob.
    Pack(BootIndex, PackOrigin),
    /// What these hints lead to.
    Hints(Vec<Hint>),
}

/// What is in the store of a start's content. Encoded bytes, as they are fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brought {
    /// All that the image has of it.
    pub wanted: u64,
    /// What was missing before.
    pub missing_before: u64,
    /// What is missing still.
    pub missing: u64,
    /// Why it is missing, if that is known.
    pub problem: Option<String>,
    /// Whether the store refused it.
    pub refused: bool,
}

impl Brought {
    /// This, and other content.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            wanted: self.wanted + other.wanted,
            missing_before: self.missing_before + other.missing_before,
            missing: self.missing + other.missing,
            problem: self.problem.or(other.problem),
            refused: self.refused || other.refused,
        }
    }
}

/// The content as pieces, in the order of use.
enum Pieces {
    Pack(Arc<Pack>),
    Chunks(Vec<LayerPiece>),
}

/// A piece of a layer, by the numbers of the wanted chunks in it.
struct LayerPiece {
    chunks: Vec<u32>,
    bytes: u64,
}

/// The work for one image.
struct Work {
    host: Arc<FetchHost>,
    image: Arc<Image>,
    pieces: Pieces,
}

/// What is in the store of the pieces. Encoded bytes.
#[derive(Default)]
struct Survey {
    wanted: u64,
    /// Of pieces of which something is not local, or in memory only.
    missing: u64,
    /// Why something stays in memory only.
    refusal: Option<StoreError>,
}

/// The next requests.
struct Segment {
    runs: Vec<Vec<Piece>>,
    /// The small objects that they are parts of.
    small: Vec<Arc<Object>>,
    /// Number of the piece after them.
    next: usize,
}

impl ImageHandle {
    /// Fetches what is missing of the content, and returns once it is kept. `progress` is called with the bytes requested, of those that
    /// were missing. Call it once for an image, or for a predicted pack and then for hints. Dropping the future stops it; requests on the wire
    /// complete.
    pub async fn bring(
        &self,
        content: StartContent,
        pace: &Pace,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Brought {
        let work = Arc::new(Work::new(self.host.clone(), self.image.clone(), &content));
        if let Pieces::Pack(pack) = &work.pieces {
            work.image.prefetch.use_pack(pack.clone());
        }
        let Survey { wanted, missing: missing_before, .. } = work.survey().await;
        if missing_before == 0 {
            return Brought { wanted, ..Brought::default() };
        }
        work.request(pace, &|requested| progress(requested, missing_before)).await;
        // A pack that was given up on the way has no pieces any more.
        let again = Arc::new(Work::new(work.host.clone(), work.image.clone(), &content));
        let Survey { missing, refusal, .. } = again.survey().await;
        if missing == 0 {
            return Brought { wanted, missing_before, ..Brought::default() };
        }
        let refused = refusal.is_some() || work.host.bypass.is_active();
        let problem = refusal.map(|error| error.to_string()).or_else(|| work.problem());
        Brought { wanted, missing_before, missing, problem, refused }
    }

    /// Whether the image has anything that [`ImageHandle::bring`] would fetch for these hints.
    pub fn has_hinted(&self, hints: &[Hint]) -> bool {
        !self.image.hinted_pieces(hints).is_empty()
    }
}

impl Image {
    /// The pieces of layers that the hints lead to. Without those whose chunks can only be checked at their place in the layer: what is
    /// kept of them is of use to this process alone.
    fn hinted_pieces(&self, hints: &[Hint]) -> Vec<LayerPiece> {
        let (mut pieces, mut places) = (Vec::<LayerPiece>::new(), HashMap::new());
        for number in self.hinted(hints) {
            let Some(entry) = self.table.chunk(number) else { continue };
            let ChunkPlace::Blob { offset, length, .. } = entry.chunk.place else { continue };
            if !entry.chunk.place.names_content() {
                continue;
            }
            let place = *places.entry((entry.layer, offset, length)).or_insert(pieces.len());
            match pieces.get_mut(place) {
                Some(piece) => piece.chunks.push(number),
                None => pieces.push(LayerPiece { chunks: vec![number], bytes: length }),
            }
        }
        pieces
    }
}

impl FetchHost {
    /// Makes the local parts of a small object last. Nothing is to be done if it is complete.
    fn make_last(&self, object: &Object) -> Result<(), StoreError> {
        if self.store.contains(&self.contents.kept_as(&object.id)) {
            return Ok(());
        }
        let persisted = object.partial(&*self.store).and_then(|partial| partial.persist());
        persisted.inspect_err(|error| {
            tracing::debug!(object = %object.id, %error, "a part of a small object does not last");
        })
    }
}

impl Work {
    fn new(host: Arc<FetchHost>, image: Arc<Image>, content: &StartContent) -> Self {
        let pieces = match content {
            StartContent::Pack(index, origin) => Pieces::Pack(Arc::new(Pack::new(index, &image.table, *origin))),
            StartContent::Hints(hints) => Pieces::Chunks(image.hinted_pieces(hints)),
        };
        Self { host, image, pieces }
    }

    fn prefetcher(&self) -> (Prefetcher, usize) {
        match &self.pieces {
            Pieces::Pack(_) => (Prefetcher::BootPack, REPLAY_REQUESTS),
            Pieces::Chunks(_) => (Prefetcher::Hints, hints::REQUESTS),
        }
    }

    fn may(&self, step: Step) -> bool {
        self.image.prefetch.may(self.prefetcher().0, step)
    }

    /// Why something is missing.
    fn problem(&self) -> Option<String> {
        match self.image.prefetch.obstacle(self.prefetcher().0, Step::Next) {
            Some(obstacle) => Some(obstacle.to_string()),
            None => self.image.tally.image.snapshot().last_error,
        }
    }

    /// Requests what is missing.
    async fn request(self: &Arc<Self>, pace: &Pace, requested: &(dyn Fn(u64) + Send + Sync)) {
        let _guard = Predicting::begin(&self.image.prefetch);
        let (prefetcher, requests) = self.prefetcher();
        // Half a second at this rate.
        let paced = pace.rate().map_or(REPLAY_MOST_BYTES, |rate| (rate.get() / 2).max(PACED_BYTES));
        let (mut next, mut most, mut open_requests) = (0, REPLAY_FIRST_BYTES.min(paced), OpenRequests::default());
        let (mut held, mut bytes) = (Vec::new(), 0);
        let step = |next| if next == 0 { Step::First } else { Step::Next };
        while next < self.count() && self.may(step(next)) {
            // Accesses the disk, and may hash local bytes.
            let (work, from) = (self.clone(), next);
            let segment = self.host.runtime.spawn_blocking(move || work.segment(from, most)).await;
            let Ok(Segment { runs, small, next: after }) = segment else { return };
            (next, most) = (after, (most * 2).min(REPLAY_MOST_BYTES).min(paced));
            held.extend(small);
            for run in runs {
                let length = length(&run);
                open_requests.fewer_than(requests).await;
                self.host.request_pieces(run, prefetcher, &mut open_requests);
                bytes += length;
                requested(bytes);
                pace.pass(length).await;
            }
            if held.len() >= HELD {
                open_requests.end().await;
                self.settle(std::mem::take(&mut held)).await;
            }
        }
        open_requests.end().await;
        self.settle(held).await;
    }

    /// Number of pieces.
    fn count(&self) -> usize {
        match &self.pieces {
            Pieces::Pack(pack) => pack.frames() as usize,
            Pieces::Chunks(pieces) => pieces.len(),
        }
    }

    /// The piece of this number, whatever is local of it, and its bytes.
    fn piece(&self, number: usize) -> Option<Piece> {
        match &self.pieces {
            Pieces::Pack(pack) => piece_in_frame(&self.image, pack, u32::try_from(number).ok()?, |_| true),
            Pieces::Chunks(pieces) => piece_in_layer(&self.image, *pieces.get(number)?.chunks.first()?),
        }
    }

    fn bytes(&self, number: usize) -> u64 {
        match &self.pieces {
            Pieces::Pack(_) => self.piece(number).map_or(0, |piece| piece.key.length),
            Pieces::Chunks(pieces) => pieces.get(number).map_or(0, |piece| piece.bytes),
        }
    }

    /// The piece of this number, beginning with a missing chunk. `None`: nothing of it is missing.
    fn lacking(&self, number: usize) -> Option<Piece> {
        match &self.pieces {
            Pieces::Pack(pack) => self.host.lacking(&self.image, pack, u32::try_from(number).ok()?),
            Pieces::Chunks(pieces) => {
                let mut chunks = pieces.get(number)?.chunks.iter();
                chunks.find_map(|chunk| self.host.lacking_piece(&self.image, *chunk))
            }
        }
    }

    /// Looks for all pieces in the store, and makes last what is local of them.
    async fn survey(self: &Arc<Self>) -> Survey {
        let work = self.clone();
        let look = move || {
            let mut survey = Survey::default();
            for number in 0..work.count() {
                let bytes = work.bytes(number);
                survey.wanted += bytes;
                if let Some(piece) = work.lacking(number) {
                    survey.missing += piece.key.length;
                } else if let Err(error) = work.make_last(number) {
                    survey.missing += bytes;
                    survey.refusal.get_or_insert(error);
                }
            }
            survey
        };
        self.host.runtime.spawn_blocking(look).await.unwrap_or_default()
    }

    /// Makes the parts of small objects last that this piece holds.
    fn make_last(&self, number: usize) -> Result<(), StoreError> {
        let chunks = match &self.pieces {
            Pieces::Pack(_) => self.piece(number).map_or_else(Vec::new, |piece| piece.chunks),
            Pieces::Chunks(pieces) => {
                let numbers = pieces.get(number).map_or(&[][..], |piece| &piece.chunks);
                numbers.iter().filter_map(|chunk| Some(placed(&self.image, *chunk)?.0)).collect()
            }
        };
        self.small_objects(&chunks).iter().try_for_each(|object| self.host.make_last(object))
    }

    /// What is missing of the pieces from `next` on, about `most` bytes of it.
    fn segment(&self, mut next: usize, most: u64) -> Segment {
        let (mut pieces, mut bytes) = (Vec::new(), 0_u64);
        while next < self.count() && bytes < most {
            if let Some(piece) = self.lacking(next) {
                bytes = bytes.saturating_add(piece.key.length);
                pieces.push(piece);
            }
            next += 1;
        }
        let small = self.small_objects(pieces.iter().flat_map(|piece| &piece.chunks));
        Segment { runs: plan::runs(pieces, &self.host.config), small, next }
    }

    /// The small objects that these chunks are parts of.
    fn small_objects<'c>(&self, chunks: impl IntoIterator<Item = &'c PieceChunk>) -> Vec<Arc<Object>> {
        let is_part = |chunk: &&PieceChunk| !chunk.is_whole_object() && chunk.object_size <= SMALL_BYTES;
        let objects: HashSet<_> = chunks.into_iter().filter(is_part).map(|chunk| chunk.object).collect();
        let objects = objects.iter().filter_map(|object| self.host.object_in(&self.image, object));
        // The others are never partly local.
        objects.filter(|object| object.parts.is_some()).collect()
    }

    /// Waits until complete objects are files, and makes the parts of the small ones last.
    async fn settle(self: &Arc<Self>, small: Vec<Arc<Object>>) {
        let mut publishing = self.host.publishing.subscribe();
        // It is no error if this takes longer: what is not published now is published by the next reader.
        let published = async { publishing.wait_for(|count| *count == 0).await.is_ok() };
        let _in_time = timeout(self.host.config.read_deadline, published).await;
        let host = self.host.clone();
        let persist = move || {
            for object in &small {
                // The last survey tries it again, and counts it.
                let _refused = host.make_last(object);
            }
        };
        let _going_down = self.host.runtime.spawn_blocking(persist).await;
    }
}

/// Bytes of a request for this run of pieces.
fn length(run: &[Piece]) -> u64 {
    let ends = run.first().zip(run.last());
    ends.map_or(0, |(first, last)| last.range().end.saturating_sub(first.range().start))
}

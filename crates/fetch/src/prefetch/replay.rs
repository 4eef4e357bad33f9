//! Fetches a boot pack while its image is already in use.
//!
//! The pack is requested from its beginning in requests that grow. A reader joins frames that are on their way, and overtakes later
//! ones with a request of its own, which the replay then omits.

use std::sync::Arc;

use crate::host::FetchHost;
use crate::image::Image;
use crate::journal::Event;
use crate::pack::places::Pack;
use crate::pieces::piece_in_frame;
use crate::plan::Piece;
use crate::prefetch::open_requests::OpenRequests;
use crate::prefetch::policy::{Predicting, Replaying};
use crate::prefetch::rules::{Prefetcher, Step};

/// The first request: small, so that what a start touches first does not wait for what it touches later.
pub const REPLAY_FIRST_BYTES: u64 = 256 << 10;
/// The largest request: a reader of a later frame may have to share the link with it.
pub const REPLAY_MOST_BYTES: u64 = 2 << 20;
/// Requests at a time: while one ends, the next one's round trip is under way.
pub(crate) const REPLAY_REQUESTS: usize = 2;

/// Requests at a time for the beginning of a pack whose image is not mounted yet. They share the link with the index, which the mount waits
/// for: with four, an image of 6 MB was mounted 0.25 s later at 25 Mbit/s.
pub const EARLY_REQUESTS: usize = 2;

impl FetchHost {
    /// Fetches all frames of the pack that contain anything missing.
    pub(crate) async fn replay(self: Arc<Self>, image: Arc<Image>, pack: Arc<Pack>, _replaying: Replaying) {
        let _guard = Predicting::begin(&image.prefetch);
        image.journal.note(Event::PackBegan { bytes: pack.bytes() });
        let mut open_requests = OpenRequests::default();
        let (mut next, mut most) = (0, REPLAY_FIRST_BYTES);
        let step = |next| if next == 0 { Step::First } else { Step::Next };
        while next < pack.frames() && image.prefetch.may(Prefetcher::BootPack, step(next)) {
            // Accesses the disk, and may hash local bytes.
            let (host, of, from) = (self.clone(), (image.clone(), pack.clone()), next);
            let segment = self.runtime.spawn_blocking(move || host.segment(&of.0, &of.1, from, most)).await;
            let Ok((pieces, after)) = segment else { return };
            (next, most) = (after, (most * 2).min(REPLAY_MOST_BYTES));
            self.request_pieces(pieces, Prefetcher::BootPack, &mut open_requests);
            open_requests.fewer_than(REPLAY_REQUESTS).await;
        }
        open_requests.end().await;
        if !pack.is_given_up() {
            image.journal.note(Event::PackEnded);
        }
    }

    /// The frames from `next` on that are needed, up to `most` encoded bytes of them, and the one after them.
    fn segment(self: &Arc<Self>, image: &Arc<Image>, pack: &Pack, mut next: u32, most: u64) -> (Vec<Piece>, u32) {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while next < pack.frames() && bytes < most {
            if let Some(piece) = self.lacking(image, pack, next) {
                bytes += piece.key.length;
                pieces.push(piece);
            }
            next += 1;
        }
        (pieces, next)
    }

    /// The frame, beginning with a missing chunk.
    pub(super) fn lacking(self: &Arc<Self>, image: &Arc<Image>, pack: &Pack, frame: u32) -> Option<Piece> {
        let mut piece = piece_in_frame(image, pack, frame, |_| true)?;
        let first = piece.chunks.iter().position(|chunk| self.lacks(image, chunk))?;
        piece.chunks.swap(0, first);
        Some(piece)
    }
}

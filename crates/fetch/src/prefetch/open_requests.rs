//! Parallel requests, for callers that fetch many pieces in a row.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use crate::host::FetchHost;
use crate::plan::Piece;
use crate::prefetch::rules::Prefetcher;

/// Requests under way. They continue when this is dropped.
#[derive(Default)]
pub(crate) struct OpenRequests(FuturesUnordered<JoinHandle<()>>);

impl OpenRequests {
    /// Waits until there are fewer than `most`.
    pub(crate) async fn fewer_than(&mut self, most: usize) {
        while self.0.len() >= most {
            let _ended = self.0.next().await;
        }
    }

    /// Waits until there are none.
    pub(crate) async fn end(&mut self) {
        self.fewer_than(1).await;
    }
}

impl FetchHost {
    /// Requests those of the pieces that are not being fetched yet.
    pub(crate) fn request_pieces(
        self: &Arc<Self>,
        pieces: Vec<Piece>,
        prefetcher: Prefetcher,
        open_requests: &mut OpenRequests,
    ) {
        let planned = self.flights.plan_missing(pieces, |new| self.plan_requests(new, prefetcher.lane()));
        open_requests.0.extend(self.start(planned));
    }
}

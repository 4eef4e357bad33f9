//! Parallel requests, for callers that fetch many pieces in a row.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use crate::host::Host;
use crate::plan::Piece;
use crate::prefetch::Prefetcher;

/// Requests under way. They continue when this is dropped.
#[derive(Default)]
pub(crate) struct UnderWay(FuturesUnordered<JoinHandle<()>>);

impl UnderWay {
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

impl Host {
    /// Requests those of the pieces that are not being fetched yet.
    pub(crate) fn bring(self: &Arc<Self>, pieces: Vec<Piece>, prefetcher: Prefetcher, under_way: &mut UnderWay) {
        let planned = self.flights.plan_missing(pieces, |new| self.plan_requests(new, prefetcher.lane()));
        under_way.0.extend(self.start(planned));
    }
}

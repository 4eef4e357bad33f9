//! The gate where requests wait while their sources do not answer, and the probes that are sent for them. The state of a source is
//! in `breaker.rs`.

use std::sync::Arc;

use futures::future::select_all;
use tokio::time::Instant;

use crate::body::Body;
use crate::breaker::{Attempt, GateState};
use crate::config::PROBE_PATIENCE;
use crate::error::PieceError;
use crate::flight::{Flight, Request};
use crate::host::FetchHost;
use crate::image::Image;
use crate::lanes::Lane;
use crate::plan::Piece;

impl FetchHost {
    /// Waits until one of the images' sources may be asked for these flights of the request, and returns it: the first that is in
    /// no outage. While all are, each of them is probed. A request that no reader waits for is cancelled unless a probe is due:
    /// it waits only for probes that it sends itself.
    pub(crate) async fn gate(
        self: &Arc<Self>,
        request: &Request,
        sources: &[Arc<Image>],
        flights: &[Arc<Flight>],
    ) -> Result<Arc<Image>, PieceError> {
        let Some(first) = flights.first() else { return Err(PieceError::Cancelled) };
        let mut sent = false;
        loop {
            if let Some(available) = sources.iter().find(|image| !image.breaker.has_outage()) {
                request.set_stuck(false);
                return Ok(available.clone());
            }
            let mut changed: Vec<_> = sources.iter().map(|image| Box::pin(image.breaker.changed())).collect();
            // No notification is missed from here on.
            for changed in &mut changed {
                changed.as_mut().enable();
            }
            let (mut until, mut failure) = (None::<Instant>, PieceError::Cancelled);
            for image in sources {
                let wait = match Attempt::at_gate(&image.breaker, request.order) {
                    GateState::Open => {
                        request.set_stuck(false);
                        return Ok(image.clone());
                    }
                    GateState::Failed(error) => {
                        failure = error;
                        continue;
                    }
                    GateState::Probe(attempt) => {
                        self.probe(image, &first.piece, attempt);
                        sent = true;
                        Instant::now() + PROBE_PATIENCE
                    }
                    GateState::Wait(at) => at,
                };
                until = Some(until.map_or(wait, |until| until.min(wait)));
            }
            let Some(until) = until else { return Err(failure) };
            if !request.priority.is_awaited() && !std::mem::take(&mut sent) {
                return Err(PieceError::Cancelled);
            }
            if !request.set_stuck(true) {
                flights.iter().for_each(|flight| flight.wake_readers());
            }
            let _elapsed = tokio::time::timeout_at(until, select_all(changed)).await;
        }
    }

    /// Whether the request for these flights, which failed with `error`, is made again at this source: early in an outage a reader should
    /// wait rather than fail. The grace of the first outage that the request meets counts, so a source that breaks off each answer is
    /// not retried for ever.
    ///
    /// A registry that ends refuses connections and still answers over old ones: no outage of it may be known, or only for a moment, and
    /// the gate would let the next attempt pass at once. It follows a pause. If there are `others`, they are tried first then, and readers
    /// that can turn to other images do.
    pub(crate) async fn waits_on(
        &self,
        request: &Request,
        flights: &[Arc<Flight>],
        image: &Image,
        others: bool,
        error: &PieceError,
    ) -> bool {
        if !error.is_outage() || matches!(error, PieceError::Resting(_)) || !request.priority.is_awaited() {
            return false;
        }
        let (now, known) = (Instant::now(), image.breaker.grace_ends());
        let ends = request.grace_ends(known.unwrap_or(now + self.config.outage_grace));
        if now >= ends || (known.is_none() && others) {
            return false;
        }
        let (attempts, pause) = request.failed_early(error);
        if known.is_none() || attempts > 1 {
            request.set_stuck(true);
            flights.iter().for_each(|flight| flight.wake_readers());
            tokio::time::sleep(pause).await;
        }
        true
    }

    /// Probes the source by requesting the first byte of the piece. Only the outcome matters. It may take as long as any request.
    fn probe(self: &Arc<Self>, image: &Arc<Image>, piece: &Piece, attempt: Attempt) {
        let (image, blob, limit) = (image.clone(), piece.blob, self.config.stall_limit);
        // The places of a layer that is streamed are not those of its blob.
        let start = if piece.needs_stream() { 0 } else { piece.range().start };
        self.runtime.spawn(async move {
            // The attempt informs the breaker.
            if let Ok(mut body) = Body::probe(&image, blob, start, limit, attempt).await {
                let _byte = body.next(1, Lane::Demand).await;
            }
        });
    }

    /// The images whose sources have the flight's layer, in the order in which they are tried: those in an outage come last.
    pub(crate) fn sources(&self, flight: &Flight) -> Vec<Arc<Image>> {
        let mut sources = self.images.serving(&flight.piece.key.layer, &flight.piece.image);
        sources.sort_by_key(|image| image.breaker.has_outage());
        sources
    }
}

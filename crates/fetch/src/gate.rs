//! Where requests wait while their source does not answer, and the probe that is sent for them. What is known of the source is in
//! `breaker.rs`.

use std::sync::Arc;

use tokio::time::Instant;

use crate::body::Body;
use crate::breaker::{Attempt, Look};
use crate::error::PieceError;
use crate::flight::{Flight, Request};
use crate::host::Host;
use crate::image::Image;
use crate::lanes::Lane;
use crate::plan::Piece;

impl Host {
    /// Returns when the image's source may be asked for these flights of the request. A request that has other sources left does not wait, and
    /// what nobody waits for waits for a probe at most, if one is due.
    pub(crate) async fn gate(
        self: &Arc<Self>,
        request: &Request,
        image: &Arc<Image>,
        flights: &[Arc<Flight>],
        others_left: bool,
    ) -> Result<(), PieceError> {
        let Some(first) = flights.first() else { return Ok(()) };
        let mut sent = false;
        loop {
            if others_left && image.breaker.is_resting() {
                return Err(PieceError::Cancelled);
            }
            let changed = image.breaker.changed();
            tokio::pin!(changed);
            // From here on no notice is missed.
            changed.as_mut().enable();
            match Attempt::look(image, request.order) {
                Look::Open => {
                    request.is_stuck(false);
                    return Ok(());
                }
                Look::Failed(error) => return Err(error),
                Look::Probe(attempt) => {
                    self.probe(image, &first.piece, attempt);
                    sent = true;
                }
                Look::Wait(_) if !request.priority.is_awaited() && !std::mem::take(&mut sent) => {
                    return Err(PieceError::Cancelled);
                }
                Look::Wait(until) => {
                    if !request.is_stuck(true) {
                        flights.iter().for_each(|flight| flight.wake_readers());
                    }
                    let _elapsed = tokio::time::timeout_at(until, changed).await;
                }
            }
        }
    }

    /// Whether the request, which failed so, goes back to the gate: early in an outage a reader would rather wait than fail. The grace of
    /// the first outage that the request meets counts: a source that breaks off each answer is not asked for ever.
    pub(crate) fn waits_on(&self, request: &Request, image: &Image, error: &PieceError) -> bool {
        if !error.is_outage() || matches!(error, PieceError::Resting(_)) || !request.priority.is_awaited() {
            return false;
        }
        let grace_ends = image.breaker.grace_ends();
        grace_ends.is_some_and(|ends| Instant::now() < request.grace_ends(ends))
    }

    /// Asks for the first byte of the piece: what comes of it is all that is wanted. It may take as long as any request.
    fn probe(self: &Arc<Self>, image: &Arc<Image>, piece: &Piece, attempt: Attempt) {
        let (image, blob, limit) = (image.clone(), piece.blob, self.config.stall_limit);
        // The places of a layer that is streamed are not those of its blob.
        let start = if piece.needs_stream() { 0 } else { piece.range().start };
        self.runtime.spawn(async move {
            // The attempt tells the breaker.
            if let Ok(mut body) = Body::probe(&image, blob, start, limit, attempt).await {
                let _byte = body.next(1, Lane::Demand).await;
            }
        });
    }
}

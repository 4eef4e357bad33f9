//! Runs passes, and joins flights to them.

use std::sync::Arc;

use super::pass::{Joined, Pass, PassKey};
use super::walker::{self, Step, Walker};
use crate::error::PieceError;
use crate::flight::{Flight, RequestFlights};
use crate::host::FetchHost;
use crate::image::Image;

impl FetchHost {
    /// Completes the one flight of a request by passes through its layer.
    pub(crate) async fn fly_by_stream(self: &Arc<Self>, flights: &RequestFlights, flight: &Arc<Flight>) {
        // Starting over is expensive: the request continues for later readers even if this one gives up.
        flights.request.detach();
        let mut sources = self.sources(flight);
        let mut failure = PieceError::Cancelled;
        let mut visits = 0;
        while !sources.is_empty() {
            let source = match self.gate(&flights.request, &sources, std::slice::from_ref(flight)).await {
                Ok(source) => source,
                Err(error) => {
                    failure = error;
                    break;
                }
            };
            failure = match self.join_pass(flight, &source).await {
                Ok(()) => return,
                Err(error) => error,
            };
            visits += 1;
            if matches!(failure, PieceError::NoRoom(_)) {
                break;
            }
            let (waiting, others) = (std::slice::from_ref(flight), sources.len() > 1);
            if self.waits_on(&flights.request, waiting, &source, others, &failure).await {
                continue;
            }
            sources.retain(|known| known.id != source.id);
            // Wrong bytes are worth a second pass even if there is only one source.
            if sources.is_empty() && visits < 2 && matches!(failure, PieceError::Corrupt { .. }) {
                sources.push(source);
            }
        }
        self.give_up(flight, failure);
    }

    async fn join_pass(self: &Arc<Self>, flight: &Arc<Flight>, source: &Arc<Image>) -> Result<(), PieceError> {
        let key = (flight.piece.key.layer, source.id);
        loop {
            let start = |pass| drop(self.runtime.spawn(self.clone().run_pass(pass, flight.clone(), source.clone())));
            match self.passes.join(key, flight, start) {
                Joined::Waiting(waiting) => return waiting.await.unwrap_or(Err(PieceError::Cancelled)),
                Joined::TooLate(pass) => pass.wait_for_end().await,
            }
        }
    }

    /// The task of one pass.
    async fn run_pass(self: Arc<Self>, pass: Arc<Pass>, first: Arc<Flight>, source: Arc<Image>) {
        let (key, error) = ((first.piece.key.layer, source.id), PieceError::Cancelled);
        let mut ending = Ending { host: self.clone(), pass: pass.clone(), key, error };
        if let Err(error) = self.walk(&pass, &first, &source).await {
            ending.error = error;
        }
    }

    async fn walk(
        self: &Arc<Self>,
        pass: &Arc<Pass>,
        first: &Arc<Flight>,
        source: &Arc<Image>,
    ) -> Result<(), PieceError> {
        let admitted = self.lanes.admit_demand(&source.budget, walker::MEMORY_BYTES).await;
        let _admission = admitted.ok_or(PieceError::Cancelled)?;
        let mut walker = Walker::open(self, pass, first, source).await?;
        while self.is_wanted_on(pass).await {
            let step = self.runtime.spawn_blocking(move || walker.walk_to_goal());
            match step.await.map_err(|_| PieceError::Cancelled)?? {
                Step::GoalReached(same) => walker = *same,
                Step::EndOfLayer => return Err(self.past_the_end(first)),
            }
        }
        Ok(())
    }

    /// Whether a place further on is wanted; waits a while for one.
    async fn is_wanted_on(&self, pass: &Pass) -> bool {
        tokio::time::timeout(self.config.stream_linger, pass.wait_for_goal()).await.unwrap_or(false)
    }

    fn past_the_end(&self, flight: &Flight) -> PieceError {
        PieceError::corrupt(&flight.piece.key, "the layer ends before the chunk")
    }
}

/// Ends the pass however its task ends.
struct Ending {
    host: Arc<FetchHost>,
    pass: Arc<Pass>,
    key: PassKey,
    error: PieceError,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.host.passes.end(&self.key, &self.pass, &self.error);
    }
}

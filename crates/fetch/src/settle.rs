//! Settles flights: decodes and checks the bytes of a piece, delivers its chunks to the readers and keeps them, or gives the piece up.

use std::sync::Arc;

use bytes::Bytes;

use crate::decode::{self, Decoded, NotDecoded};
use crate::error::PieceError;
use crate::flight::{Flight, Outcome};
use crate::host::FetchHost;
use crate::image::Image;
use crate::journal::Event;
use crate::plan::Piece;

impl FetchHost {
    /// Decodes and checks a piece, delivers and keeps its chunks. Returns the flight if its bytes were wrong.
    pub(crate) async fn settle(
        self: Arc<Self>,
        flight: Arc<Flight>,
        encoded: Bytes,
        last_chance: bool,
    ) -> Option<Arc<Flight>> {
        let (host, same) = (self.clone(), flight.clone());
        if flight.piece.work_bytes() > self.config.inline_bytes {
            let work = move || match host.decode_and_check(&same, &encoded, last_chance) {
                Some(chunks) => {
                    host.hand_over(&same, chunks);
                    None
                }
                None => Some(same),
            };
            // The runtime is shutting down, or decoding panicked: the bytes must not be used.
            return self.runtime.spawn_blocking(work).await.unwrap_or(Some(flight));
        }
        let Some(chunks) = self.decode_and_check(&flight, &encoded, last_chance) else { return Some(flight) };
        // If everything that this process can be fetching fits, no write waits for room, however many run at the same time. Otherwise
        // a write may wait for seconds, which this thread must not.
        if self.store.has_room(self.config.host_bytes + self.config.trace_bytes + self.config.ahead_bytes) {
            self.hand_over(&flight, chunks);
            return None;
        }
        let chunks: Arc<[_]> = chunks.into();
        self.deliver(&flight, chunks.clone());
        let _going_down = self.runtime.spawn_blocking(move || host.keep_all(&same, &chunks)).await;
        None
    }

    /// Decodes and checks; `None` if the bytes were wrong.
    fn decode_and_check(&self, flight: &Flight, encoded: &Bytes, last_chance: bool) -> Option<Vec<Decoded>> {
        let piece = &flight.piece;
        let chunks =
            match decode::piece(&*self.config.decoder, piece, encoded, |chunk| self.is_here(&piece.image, chunk)) {
                Ok(chunks) => chunks,
                Err(NotDecoded::Failed(problem)) => {
                    tracing::warn!(image = &*piece.image.name, %problem, "a piece cannot be decoded");
                    return None;
                }
                Err(NotDecoded::Wrong(reason)) => {
                    self.report_corrupt(&piece.image, &PieceError::corrupt(&piece.key, &reason));
                    return None;
                }
            };
        if chunks.iter().any(|chunk| matches!(chunk, Decoded::Wrong)) {
            self.report_corrupt(&piece.image, &PieceError::corrupt(&piece.key, "a chunk does not match its digest"));
            // The second time, the chunks that match are used.
            if !last_chance || !chunks.iter().any(|chunk| matches!(chunk, Decoded::Bytes(_))) {
                return None;
            }
        }
        Some(chunks)
    }

    /// Delivers and keeps the chunks of a flight. Blocks on the disk.
    pub(crate) fn hand_over(self: &Arc<Self>, flight: &Arc<Flight>, chunks: Vec<Decoded>) {
        let chunks: Arc<[_]> = chunks.into();
        self.deliver(flight, chunks.clone());
        self.keep_all(flight, &chunks);
    }

    /// Delivers chunks to all readers that wait for them.
    fn deliver(&self, flight: &Flight, chunks: Arc<[Decoded]>) {
        for (chunk, decoded) in flight.piece.chunks.iter().zip(&*chunks) {
            if matches!(decoded, Decoded::Bytes(_)) {
                flight.piece.image.brought(flight.lane, chunk);
            }
        }
        self.flights.deliver(flight, Outcome::Chunks(chunks));
    }

    /// Keeps the chunks of a flight, and ends it.
    fn keep_all(self: &Arc<Self>, flight: &Arc<Flight>, chunks: &[Decoded]) {
        for (chunk, decoded) in flight.piece.chunks.iter().zip(chunks) {
            if let Decoded::Bytes(bytes) = decoded {
                self.keep(&flight.piece.image, chunk, bytes);
            }
        }
        self.flights.land(flight);
    }

    /// Fails a flight, and reports why, unless its boot pack is the cause: then the next round fetches from the layer.
    pub(crate) fn give_up(&self, flight: &Arc<Flight>, error: PieceError) {
        if self.pack_is_to_blame(&flight.piece, &error) {
            return self.flights.fail(flight, PieceError::Cancelled);
        }
        if !matches!(error, PieceError::Cancelled) {
            let image = &flight.piece.image;
            if let Some(left_out) = image.log.of(&error).admit() {
                tracing::warn!(image = %image.name, %error, "a piece cannot be fetched{left_out}");
            }
            image.tally.failed(&error);
            image.journal.note(Event::SourceFailed { reason: error.to_string() });
        }
        self.flights.fail(flight, error);
    }

    /// Whether a piece failed because its boot pack is absent or wrong. Then the pack is no longer used.
    pub(crate) fn pack_is_to_blame(&self, piece: &Piece, error: &PieceError) -> bool {
        let Some(pack) = piece.image.prefetch.pack().filter(|pack| piece.is_of(pack) && error.is_of_the_blob()) else {
            return false;
        };
        if pack.give_up() {
            let text =
                format!("the boot pack of {} is abandoned, and the layers are read instead: {error}", piece.image.name);
            tracing::warn!("{text}");
            piece.image.tally.failed(&text);
            piece.image.journal.note(Event::PackGivenUp { reason: error.to_string() });
        }
        true
    }

    /// Reports bytes that do not match their digest: counters, log, journal, `status`.
    pub(crate) fn report_corrupt(&self, image: &Image, error: &PieceError) {
        if let Some(left_out) = image.log.corrupt.admit() {
            tracing::error!(image = %image.name, "{error}{left_out}");
        }
        image.tally.add(|counters| &counters.digest_failures, 1);
        image.journal.note(Event::Corrupt { reason: error.to_string() });
        image.tally.failed(error);
    }
}

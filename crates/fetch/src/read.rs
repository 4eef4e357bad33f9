//! The path of a read, from the object to the wire and back. Each step is one call, in the file that the step names.
//!
//! ```text
//! read_local   complete object in the store? verified chunks local?     local.rs, object.rs
//! check        a complete object that must be hashed first              check.rs
//! read         the images that have the object, one after the other     image.rs
//!   resolve    images contradict each other? hash the whole first       dispute.rs
//!   round      once per round, until all chunks are local               rounds.rs
//!     search     what an earlier process left: hash it, use it          presence.rs, object.rs
//!     pieces     missing chunks → pieces to decode                      pieces.rs
//!     neighbours the small files behind it                              prefetch/neighbours.rs
//!     request    under way already? join. Otherwise pieces → requests   flight.rs, plan.rs, request.rs
//!       fly      gate → room → query the source → cut                   gate.rs, breaker.rs, body.rs
//!       receive  the first chunk before the rest of its piece           first_chunk.rs
//!       settle   decode → verify → deliver → keep                       settle.rs, decode.rs, keep.rs
//!     wait       until it is local, or the deadline                     flight.rs
//!     gather     exactly the requested bytes                            gather.rs, content.rs
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tarpon_blob::Opened;
use tarpon_layer::ObjectId;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::config::{READ_BYTES, READ_ROUNDS};
use crate::content::ObjectBytes;
use crate::error::{PieceError, ReadError};
use crate::gather::Arrived;
use crate::host::FetchHost;
use crate::image::{Claimant, Claims};
use crate::journal::Waiting;
use crate::local::LocalObject;
use crate::object::Object;
use crate::prefetch::governor::state::StallGuard;

impl FetchHost {
    /// The bytes, if they are local and need no hashing first. Blocks on the local disk alone, for as long as reading them takes.
    pub(crate) fn read_local(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
    ) -> Opened<Result<ObjectBytes, ReadError>> {
        if length > READ_BYTES {
            return Opened::Sound(Err(ReadError::TooLong { length, limit: READ_BYTES }));
        }
        let known = self.images.first_holding(id);
        if let Some(object) = known.as_ref().and_then(|(image, _)| self.live_object(image, id))
            && object.parts.is_some()
            && self.may_be_lazy(&object)
        {
            let range = clip(offset, length, object.size());
            if let Some(bytes) = self.gather(&object, &range, &Arrived::new()) {
                self.images.was_read(id, range.clone(), Duration::ZERO);
                self.look_ahead(&object, range);
                object.image.tally.served(bytes.len());
                return Opened::Sound(Ok(bytes));
            }
        }
        let answer = self.opened(id).map(|local| self.load(&local, id, offset, length));
        if let (Opened::Sound(Ok(bytes)), Some((image, _))) = (&answer, known) {
            self.images.was_read(id, offset..offset.saturating_add(bytes.len() as u64), Duration::ZERO);
            image.tally.served(bytes.len());
        }
        answer
    }

    /// Local bytes that no reader requested, for the kernel's page cache. What is there is read without requests: so the use of the bytes is
    /// unknown, and an observer of all reads sees them as read, like those of the kernel's read-ahead.
    pub(crate) fn page_in(self: &Arc<Self>, id: &ObjectId, offset: u64, length: u64) -> Option<ObjectBytes> {
        if length > READ_BYTES {
            return None;
        }
        let (image, _) = self.images.first_holding(id)?;
        let partial = self.live_object(&image, id).filter(|object| object.parts.is_some() && self.may_be_lazy(object));
        let bytes = match partial {
            Some(object) => {
                let range = clip(offset, length, object.size());
                let bytes = self.gather(&object, &range, &Arrived::new())?;
                object.note_paged_in(range);
                bytes
            }
            None => self.load(&self.complete(id)?, id, offset, length).ok()?,
        };
        let range = offset..offset.saturating_add(bytes.len() as u64);
        self.images.observe(id, &range, Duration::ZERO);
        self.images.paged_in(id, &range);
        Some(bytes)
    }

    /// Reads a complete object. One that cannot be read is closed, so that the next read opens it from the store again.
    fn load(&self, local: &LocalObject, id: &ObjectId, offset: u64, length: u64) -> Result<ObjectBytes, ReadError> {
        let answer = local.read(id, offset, length);
        if answer.is_err() {
            self.open.forget(&self.contents.kept_as(id));
        }
        answer
    }

    /// The object as a local file, if the store has it whole and verified. A store error counts as absent.
    pub(crate) fn complete(&self, id: &ObjectId) -> Option<LocalObject> {
        self.opened(id).sound()
    }

    /// The bytes, from wherever they are, within the deadline.
    pub(crate) async fn read(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<ObjectBytes, ReadError> {
        let unchecked = match self.read_local(id, offset, length) {
            Opened::Sound(answer) => return answer,
            Opened::Unchecked(size) => Some(size),
            Opened::Absent => None,
        };
        let outcome = match self.late_reads.remembered(id) {
            Some(error) => Err(error),
            None => self.read_in_time(id, offset, length, unchecked).await,
        };
        if outcome.is_err() {
            self.counters.failed_reads.add(1);
        }
        outcome
    }

    /// The bytes, or an error at the deadline, whatever the read waits for. A local file of `unchecked` bytes must be hashed first.
    async fn read_in_time(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        unchecked: Option<u64>,
    ) -> Result<ObjectBytes, ReadError> {
        let clock = Clock::begin(self.config.read_deadline);
        let read = async {
            if let Some(size) = unchecked {
                self.check(id, size).await;
                if let Opened::Sound(answer) = self.read_local(id, offset, length) {
                    return answer;
                }
            }
            self.read_claimed(id, offset, length, clock).await
        };
        let outcome = match tokio::time::timeout_at(clock.until, read).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                let error = self.late(id);
                self.late_reads.remember(id, &error);
                return Err(error);
            }
        };
        // The failure of a piece is remembered separately (`flight.rs`), and does not concern the rest of the object.
        if let Err(error) = &outcome
            && match error {
                ReadError::Disputed { .. } => Instant::now() >= clock.until,
                _ => clock.came.elapsed() >= self.config.outage_memo && self.has_several(id),
            }
        {
            self.late_reads.remember(id, error);
        }
        outcome
    }

    /// Whether several images have the object. They share the time of a read, and at its end the failures of the first ones are forgotten.
    fn has_several(&self, id: &ObjectId) -> bool {
        matches!(self.images.claims(id), Claims::Agreed(claimants) if claimants.len() > 1)
    }

    /// The bytes, from an image that has the object, once the images agree on it.
    async fn read_claimed(
        self: &Arc<Self>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        clock: Clock,
    ) -> Result<ObjectBytes, ReadError> {
        for _round in 0..READ_ROUNDS {
            let claimants = match self.images.claims(id) {
                Claims::Agreed(claimants) => claimants,
                Claims::Disputed(claimants) => {
                    self.resolve(id, claimants, clock.until).await?;
                    continue;
                }
                Claims::Unknown => break,
                Claims::Distrusted((image, _)) => return Err(image.refuse_distrusted(id)),
                Claims::Refuted => return Err(ReadError::Poisoned(*id)),
            };
            if let Some(answer) = self.read_from(claimants, id, offset, length, clock).await {
                return answer;
            }
        }
        Err(ReadError::UnknownObject(*id))
    }

    /// Tries the images, which agree on the object, one after the other. `None` if they no longer do.
    async fn read_from(
        self: &Arc<Self>,
        mut claimants: Vec<Claimant>,
        id: &ObjectId,
        offset: u64,
        length: u64,
        clock: Clock,
    ) -> Option<Result<ObjectBytes, ReadError>> {
        let mut failure = ReadError::UnknownObject(*id);
        let mut others = claimants.len();
        if others > 1 {
            claimants.sort_by_key(|(image, _)| image.breaker.has_outage());
        }
        for (image, _) in claimants {
            others -= 1;
            let Some(object) = self.object_in(&image, id) else { continue };
            if !self.may_be_lazy(&object) {
                return None;
            }
            let range = clip(offset, length, object.size());
            let began = Instant::now();
            let mut waiting = Waiting::default();
            let stalling = StallGuard::begin(&image.governor);
            // A source that hangs leaves time for the others.
            let turn = if others > 0 { clock.half() } else { clock };
            let answer = self.read_through(&object, range.clone(), turn, &mut waiting).await;
            drop(stalling);
            let waited = began.elapsed();
            image.journal.stalled((*id, &range), waited, &waiting, answer.is_err());
            match answer {
                Ok(bytes) => {
                    self.images.was_read(id, range, waited);
                    image.tally.served_late(bytes.len(), waited);
                    self.govern(&image);
                    return Some(Ok(bytes));
                }
                Err(cause) => {
                    // The read waited for a failure, not for round trips.
                    image.governor.forget_waits();
                    let elsewhere = cause.another_image_may_help();
                    failure = ReadError::Fetch { object: *id, image: image.name.clone(), cause };
                    image.tally.try_failed(&failure, waited);
                    if !elsewhere || Instant::now() >= clock.until {
                        break;
                    }
                }
            }
        }
        Some(Err(failure))
    }

    /// Reads the object by the chunk list of one image, or from a local file once it is one.
    async fn read_through(
        self: &Arc<Self>,
        object: &Arc<Object>,
        range: Range<u64>,
        clock: Clock,
        waiting: &mut Waiting,
    ) -> Result<ObjectBytes, PieceError> {
        let mut arrived = Arrived::new();
        for _round in 0..READ_ROUNDS {
            if let Some(local) = self.complete_checked(&object.id).await
                && let Ok(bytes) = self.load(&local, &object.id, range.start, range.end - range.start)
            {
                return Ok(bytes);
            }
            if let Some(bytes) = self.read_round(object, &range, clock, &mut arrived, waiting).await? {
                return Ok(bytes);
            }
        }
        Err(PieceError::Cancelled)
    }
}

/// The part of a read that is inside the object.
fn clip(offset: u64, length: u64, size: u64) -> Range<u64> {
    let start = offset.min(size);
    start..start.saturating_add(length).min(size)
}

//! Settles disputes: objects that images contradict each other about.
//!
//! An object is named by the digest of the whole, and a read names only the object; but arriving bytes are checked chunk by chunk, against the
//! chunk list of an image. A list may be false: every chunk matches its digest, and the whole does not match. A false list of one image
//! must not affect readers of another, so:
//!
//! - Results from chunks (presence bits, partial files, failures) belong to the list that they were checked against, never to the object
//!   ([`crate::object::Parts`]). Only content that was hashed as a whole is shared by name.
//! - While all images that have the object have the same list, its chunks are served as they arrive: each reader gets only bytes that its
//!   own image vouches for. The same applies to a list that was found to be true, or that is left after all others were found to be false.
//! - Otherwise nothing is served before the whole has been fetched and hashed: each list separately, several at a time, until one is true or
//!   only one is left. This happens when one image is false, and when two formats split the same file differently: rarely.
//!
//! A kernel that shares one inode of the object among all images keeps more than a read: see `inodes.rs`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use tarpon_layer::{Chunk, ChunkPlace, ObjectId};
use tarpon_oci::{Hasher, Verified};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::disputes::Outcome;
use crate::error::{PieceError, ReadError};
use crate::host::FetchHost;
use crate::ids::ListId;
use crate::image::{Claimant, Claims};
use crate::local::LocalObject;
use crate::object::Object;

/// Maximum size in bytes of an object that is fetched whole to verify its list. Larger ones stay unreadable during a dispute.
const WHOLE_BYTES: u64 = 4 << 30;
/// Maximum time for one list. A very slow source must not occupy a slot for ever.
const WHOLE_TIME: Duration = Duration::from_secs(600);
/// Bytes that are hashed at a time: the usual size of a chunk.
const WINDOW: u64 = 4 << 20;
/// Lists of one object that are verified at the same time, so that one that hangs does not delay the others.
const LISTS_AT_ONCE: usize = 4;

impl FetchHost {
    /// Whether chunks of the object may be served before the whole was hashed.
    pub(crate) fn may_be_lazy(&self, object: &Object) -> bool {
        let Some(parts) = &object.parts else { return true };
        loop {
            let generation = self.images.generation();
            if object.is_agreed(generation) {
                return true;
            }
            let Claims::Agreed(claimants) = self.images.claims(&object.id) else { return false };
            let is_true = self.images.verdict(&object.id, &parts.list) == Some(true);
            let is_agreed = claimants.first().is_some_and(|(image, entry)| image.list_id(entry) == parts.list);
            if !is_true && !is_agreed {
                return false;
            }
            if !is_true {
                self.inodes.feed(&object.id, parts.list);
            }
            // In this order: an image that is registered and then checks the inodes sees this list, or is seen here.
            if self.images.generation() == generation {
                object.set_agreed(generation);
                return true;
            }
        }
    }

    /// Waits until the dispute about the object is settled, until `deadline` at most.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        id: &ObjectId,
        claimants: Vec<Claimant>,
        deadline: Instant,
    ) -> Result<(), ReadError> {
        let mut outcome = self.begin_resolving(id, claimants)?;
        let disputed = |reason: String| ReadError::Disputed { object: *id, reason: reason.into() };
        let settled = tokio::time::timeout_at(deadline, outcome.wait_for(Option::is_some)).await;
        let settled = settled.map_err(|_elapsed| disputed(PieceError::Late(self.config.read_deadline).to_string()))?;
        settled
            .map_or(None, |outcome| outcome.clone())
            .unwrap_or_else(|| Err(disputed("the check was cancelled".into())))
    }

    /// Starts to determine in the background which list is true. The task continues without waiters.
    pub(crate) fn begin_resolving(
        self: &Arc<Self>,
        id: &ObjectId,
        claimants: Vec<Claimant>,
    ) -> Result<watch::Receiver<Outcome>, ReadError> {
        let (outcome, settle) = self.disputes.join(id)?;
        let Some(sender) = settle else { return Ok(outcome) };
        let ending = Ending { host: self.clone(), id: *id, sender };
        self.runtime.spawn(async move {
            let outcome = ending.host.try_lists(&ending.id, claimants).await;
            ending.host.disputes.end(&ending.id, &outcome);
            if outcome.is_ok() {
                ending.host.late_reads.forget(&ending.id);
            }
            ending.sender.send_replace(Some(outcome));
        });
        Ok(outcome)
    }

    /// Verifies the lists until the images no longer contradict each other.
    async fn try_lists(self: &Arc<Self>, id: &ObjectId, claimants: Vec<Claimant>) -> Result<(), ReadError> {
        if let Some(left_out) = self.disputes.log.admit() {
            tracing::warn!(object = %id, "images contradict each other about an object, which is fetched whole{left_out}");
        }
        let mut lists: HashMap<ListId, Vec<Claimant>> = HashMap::new();
        for (image, entry) in claimants {
            lists.entry(image.list_id(&entry)).or_default().push((image, entry));
        }
        let tries = lists.into_iter().map(|(list, claimants)| async move {
            let outcome = tokio::time::timeout(WHOLE_TIME, self.try_list(id, list, &claimants)).await;
            outcome.unwrap_or(Err(PieceError::Late(WHOLE_TIME)))
        });
        let mut tries = stream::iter(tries).buffer_unordered(LISTS_AT_ONCE);
        let mut failure = None;
        while let Some(outcome) = tries.next().await {
            if let Err(error) = outcome {
                failure.get_or_insert(error);
            }
            if !matches!(self.images.claims(id), Claims::Disputed(_)) {
                return Ok(());
            }
        }
        let reason = failure.unwrap_or(PieceError::Cancelled).to_string();
        Err(ReadError::Disputed { object: *id, reason: reason.into() })
    }

    /// Finds out whether one list is true, and records the verdict.
    async fn try_list(self: &Arc<Self>, id: &ObjectId, list: ListId, claimants: &[Claimant]) -> Result<(), PieceError> {
        let is_true = match self.compare_with_local(id, claimants).await {
            Some(is_true) => is_true?,
            None => match (self.hash_whole(id, claimants).await, self.compare_with_local(id, claimants).await) {
                (Ok(is_true), _) => is_true,
                // It has become a local file meanwhile: its chunks are no longer fetched.
                (Err(_), Some(is_true)) => is_true?,
                (Err(error), None) => return Err(error),
            },
        };
        for (image, _) in claimants.iter().filter(|_| !is_true) {
            image.report_refuted(id);
        }
        self.record_verdict(*id, list, is_true);
        Ok(())
    }

    /// Fetches and hashes the object by the list that the claimants share.
    async fn hash_whole(self: &Arc<Self>, id: &ObjectId, claimants: &[Claimant]) -> Result<bool, PieceError> {
        let size = claimants.first().map_or(0, |(_, entry)| entry.size);
        if size > WHOLE_BYTES {
            return Err(PieceError::BadTable(format!("{size} bytes are too many to fetch whole").into()));
        }
        let mut hasher = Hasher::new();
        let mut at = 0;
        while at < size {
            let end = size.min(at + WINDOW);
            let bytes = self.read_window(id, claimants, at..end).await?;
            at = end;
            let hashing = self.runtime.spawn_blocking(move || {
                hasher.update(&bytes);
                hasher
            });
            hasher = hashing.await.map_err(|_going_down| PieceError::Cancelled)?;
        }
        Ok(Verified::check_stream(id, hasher).is_ok())
    }

    /// A part of the object from any of the claimants.
    async fn read_window(
        self: &Arc<Self>,
        id: &ObjectId,
        claimants: &[Claimant],
        window: Range<u64>,
    ) -> Result<Bytes, PieceError> {
        let mut failure = PieceError::Cancelled;
        for (image, _) in claimants {
            let Some(object) = self.object_in(image, id) else { continue };
            let clock = Clock::begin(self.config.read_deadline);
            match self.read_chunks(&object, window.clone(), clock).await {
                Ok(bytes) => return Ok(bytes.into_bytes()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Whether the list fits the object that is a local file; `None` if it is not.
    async fn compare_with_local(
        self: &Arc<Self>,
        id: &ObjectId,
        claimants: &[Claimant],
    ) -> Option<Result<bool, PieceError>> {
        let local = self.complete_checked(id).await?;
        let object = self.object_in(&claimants.first()?.0, id)?;
        let compared = self.runtime.spawn_blocking(move || fits(&object, &local)).await;
        Some(compared.map_err(|_going_down| PieceError::Cancelled))
    }
}

/// Whether every chunk of the list matches the verified file.
fn fits(object: &Object, local: &LocalObject) -> bool {
    let chunk_fits = |chunk: Chunk| {
        let (mut hasher, mut at, mut zeros) = (Hasher::new(), chunk.object_offset, true);
        let end = chunk.object_offset.saturating_add(chunk.size);
        while at < end {
            let Ok(bytes) = local.read(&object.id, at, WINDOW.min(end - at)) else { return false };
            if bytes.is_empty() {
                return false;
            }
            hasher.update(&bytes);
            zeros &= bytes.iter().all(|byte| *byte == 0);
            at += bytes.len() as u64;
        }
        if chunk.place == ChunkPlace::Zeros { zeros } else { hasher.finish() == chunk.digest }
    };
    object.size() == local.size && object.chunks().all(|(_, chunk)| chunk_fits(chunk))
}

/// Ends the dispute however its task ends.
struct Ending {
    host: Arc<FetchHost>,
    id: ObjectId,
    sender: watch::Sender<Outcome>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            self.host.disputes.abandon(&self.id);
        }
    }
}

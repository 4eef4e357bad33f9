//! Layers that hosts share through a tier: an index that another host made, or a layer that one host streams for all.
//!
//! ```text
//! listed ─► index is there, and may be used ──────────► read by index
//!        ├► blob is there ──────────────────────────────► streamed, from the tier
//!        ├► no claim, or one that has expired ──► claim ─► streamed from the registry, copied to the tier behind, index kept
//!        └► another host has the claim ─► wait, list again
//! ```
//!
//! A host begins with another layer than others do, so that hosts that start together stream different layers.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tarpon_layer::Allowance;
use tarpon_oci::{Blob, Digest, Verified};
use tarpon_store::{LayerKind, Verification};
use tarpon_tier::claim::{Claim, LONGEST_WAIT, SeenClaim, Watch};
use tarpon_tier::{LayerState, SharedLayer, Tier, Upload};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::layer::Layer;
use crate::index::artifact::{self, Indexed};
use crate::index::search_result::{CANDIDATES, SearchResult, Usable};

/// Layers that are looked up or waited for at the same time.
pub(super) const WATCHED: usize = 32;
/// Pause before a claimed layer is listed again: an eighth of the wait so far, within these bounds.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a prepared image waits until the last of its layers are in the tier.
const FINISH: Duration = Duration::from_secs(10);
/// The same after a pull, whose purpose is a complete tier too: 8 GiB at 100 Mbit/s.
const PATIENT_FINISH: Duration = Duration::from_secs(700);
/// An index follows its blob within this time, unless its host has died.
const FOLLOWS: Duration = Duration::from_secs(2);
/// Indexes of layers that are read at the same time.
const INDEXES: usize = 4;
/// Attempts to claim a layer that other hosts win, before the layer is streamed without a claim.
const REFUSALS: u32 = 5;
/// Smaller layers are not shared: streaming one takes a request, as does listing it.
const LEAST_BYTES: u64 = 64 << 10;
/// Longest index of a layer that is kept in a tier.
const INDEX_BYTES: usize = 64 << 20;

/// The layers of one image in a tier.
#[derive(Debug)]
pub(super) struct SharedLayers {
    tier: Arc<Tier>,
    /// Whether indexes in the tier may be used for the image.
    pub(super) trusts_indexes: bool,
    streams: Semaphore,
    /// Reads of indexes, of which each may take 64 MiB.
    indexes: Semaphore,
    /// Each returns why a layer is not in the tier, if it is not.
    finishing: Mutex<JoinSet<Option<String>>>,
    order: RandomState,
    has_reported: AtomicBool,
    began: Instant,
    /// Whether copies are a purpose of the preparation, so that it waits for a slower tier.
    is_patient: bool,
}

impl SharedLayers {
    /// At most `streams` layers are streamed at the same time.
    pub(super) fn new(tier: Arc<Tier>, trusts_indexes: bool, is_patient: bool, streams: usize) -> Self {
        Self {
            tier,
            trusts_indexes,
            streams: Semaphore::new(streams),
            finishing: Mutex::default(),
            order: RandomState::new(),
            has_reported: AtomicBool::new(false),
            began: Instant::now(),
            is_patient,
            indexes: Semaphore::new(INDEXES),
        }
    }

    pub(super) fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// A key by which this host orders layers, different on each host.
    pub(super) fn order_of(&self, layer: &Digest) -> u64 {
        self.order.hash_one(layer.as_bytes())
    }

    /// The indexes that the tier has of these layers now.
    pub(super) async fn find(&self, layers: &[Blob], allowance: &Allowance) -> SearchResult {
        let mut result = SearchResult::default();
        if !self.trusts_indexes || layers.is_empty() || self.tier.is_resting().is_some() {
            return result;
        }
        let shared = layers.iter().copied().filter(is_shared);
        let layers: Vec<_> = shared.map(|blob| self.find_one(blob, allowance).boxed()).collect();
        let mut waiting = stream::iter(layers).buffer_unordered(WATCHED);
        while let Some(usable) = waiting.next().await {
            result.layers.extend(usable);
        }
        result.notes.extend(self.problem());
        if !result.layers.is_empty() {
            let count = result.layers.len();
            result.notes.push(format!("indexes of {count} layers are from the tier {}", self.tier.location()));
        }
        result
    }

    /// What failed in the tier, once: why it is not used at the moment, or what failed before.
    pub(super) fn problem(&self) -> Option<String> {
        let tier = self.tier.location();
        let line = match (self.tier.is_resting(), self.tier.account().last_failure) {
            (Some(why), _) => format!("the tier {tier} is not used at the moment: {why}"),
            (None, Some(why)) => format!("the tier {tier} failed: {why}"),
            (None, None) => return None,
        };
        let is_new = !self.has_reported.swap(true, Ordering::Relaxed);
        is_new.then_some(line)
    }

    async fn find_one(&self, blob: Blob, allowance: &Allowance) -> Option<Usable> {
        let shared = SharedLayer::new(&self.tier, blob);
        let state = shared.look().await.ok()?;
        self.indexed(&shared, &state, allowance).await
    }

    /// The index of the layer in the tier.
    async fn indexed(&self, shared: &SharedLayer, state: &LayerState, allowance: &Allowance) -> Option<Usable> {
        for index in state.indexes.iter().take(CANDIDATES) {
            if self.tier.is_resting().is_some() {
                return None;
            }
            match self.read_index(shared, *index, allowance).await {
                Ok(usable) => {
                    shared.note_use(state).await;
                    return Some(usable);
                }
                Err(problem) => tracing::warn!("an index in the tier is not used: {problem}"),
            }
        }
        None
    }

    async fn read_index(&self, shared: &SharedLayer, index: Blob, allowance: &Allowance) -> Result<Usable, String> {
        let _turn = self.indexes.acquire().await.map_err(|error| error.to_string())?;
        let bytes = shared.index(index).await.map_err(|error| error.to_string())?;
        allowance.receive(bytes.len() as u64);
        let (blob, allowance) = (shared.blob(), allowance.clone());
        let read = move || artifact::read(&bytes, |described| *described == blob, &allowance);
        let layers = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?;
        let indexed = layers.map_err(|error| error.to_string())?.pop().ok_or("it is of another layer")?;
        let (index, format) = (index.digest, LayerKind::plain(indexed.compression));
        Ok(Usable { indexed, index, verification: Verification::IndexTrusted, format })
    }

    /// Those of the layers whose blobs the tier lacks, and should have.
    pub(super) async fn lacks(&self, layers: impl Iterator<Item = Blob>) -> HashSet<Digest> {
        let lacks = async |blob: Blob| {
            let state = SharedLayer::new(&self.tier, blob).look().await.ok()?;
            (!state.has_blob).then_some(blob.digest)
        };
        let looks: Vec<_> = layers.filter(is_shared).map(|blob| lacks(blob).boxed()).collect();
        stream::iter(looks).buffer_unordered(WATCHED).filter_map(async |lacks| lacks).collect().await
    }

    /// Notes behind the preparation that layers are used whose blobs are in the tier.
    pub(super) fn note_uses(&self, layers: impl Iterator<Item = Blob>) {
        let note = |blob: Blob| {
            let shared = SharedLayer::new(&self.tier, blob);
            async move {
                if let Ok(state) = shared.look().await
                    && state.has_blob
                {
                    shared.note_use(&state).await;
                }
            }
        };
        let notes: Vec<_> = layers.filter(is_shared).map(note).collect();
        self.finishing.lock().spawn(async move {
            stream::iter(notes).for_each_concurrent(WATCHED, |note| note).await;
            None
        });
    }

    /// Waits until the layer is there by its index, or it is this host's turn to stream it. `may_use_index`: the layer has no table of
    /// contents, whose claims decide which of its names are hidden, and need not be seen whole.
    pub(super) async fn turn(&self, blob: Blob, may_use_index: bool, allowance: &Allowance) -> Turn<'_> {
        let shared = SharedLayer::new(&self.tier, blob);
        let (mut watch, began, mut refusals) = (Watch::default(), Instant::now(), 0);
        let (mut permit, mut needs_index, mut blob_seen) = (None, false, None);
        let (mut has_waited, mut was_given_up, mut claim_known) = (false, false, None);
        // A failure is in the tier's account. Without the tier the layer is streamed as ever.
        while is_shared(&blob) && self.tier.is_resting().is_none() && self.began.elapsed() < LONGEST_WAIT {
            let Ok(state) = shared.look_again(claim_known).await else { break };
            claim_known = state.claim.as_ref().map(SeenClaim::number).or(claim_known);
            // Claims may be among what was not listed.
            if !state.is_complete {
                break;
            }
            if may_use_index && let Some(usable) = self.indexed(&shared, &state, allowance).await {
                return Turn::Indexed(Box::new(usable));
            }
            if state.has_blob {
                let is_new = state.indexes.is_empty() && claim_known.is_some();
                if may_use_index && is_new && *blob_seen.get_or_insert_with(Instant::now) + FOLLOWS > Instant::now() {
                    permit = None;
                    sleep(PAUSE).await;
                    continue;
                }
                shared.note_use(&state).await;
                // Of another version, or wrong, if there is one.
                needs_index = may_use_index || state.indexes.is_empty();
                break;
            }
            was_given_up |= has_waited && state.claim.is_none();
            if state.claim.as_ref().is_some_and(|claim| !watch.has_expired(claim)) {
                // The tier did not take the layer from one host. To wait for each next one would cost a transfer each time.
                if was_given_up {
                    break;
                }
                (permit, has_waited) = (None, true);
                sleep((began.elapsed() / 8).clamp(PAUSE, LONGEST_PAUSE)).await;
                continue;
            }
            if permit.is_none() {
                let now = self.streams.try_acquire().ok();
                let is_free = now.is_some();
                permit = if is_free { now } else { self.streams.acquire().await.ok() };
                if !is_free {
                    // Another host may have claimed the layer during the wait.
                    continue;
                }
            }
            match shared.claim(&state).await {
                Ok(Some(claim)) => {
                    let upload = shared.upload(&claim);
                    let upload = Some(if self.is_patient { upload.patient() } else { upload });
                    return Turn::Stream { copy: Some(Copy { claim: Some(claim), upload }), permit };
                }
                // Another host was faster. If its claim never becomes visible, this is not a tier that can be shared.
                Ok(None) if refusals < REFUSALS => {
                    (refusals, permit, claim_known) = (refusals + 1, None, state.next_claim().try_into().ok());
                    sleep(PAUSE).await;
                }
                Ok(None) | Err(_) => break,
            }
        }
        if permit.is_none() {
            permit = self.streams.acquire().await.ok();
        }
        let copy = needs_index.then_some(Copy { claim: None, upload: None });
        Turn::Stream { copy, permit }
    }

    /// Completes the copy behind the preparation of the image. `proof`: of the bytes that were copied.
    pub(super) fn keep(&self, copy: Copy, proof: Verified<()>, layer: &Layer, keeps_index: bool) {
        let shared = SharedLayer::new(&self.tier, layer.blob);
        let indexed = Indexed { blob: layer.blob, compression: layer.compression, index: layer.index.clone() };
        self.finishing.lock().spawn(async move {
            let Copy { claim, upload } = copy;
            let copied = match upload {
                Some(upload) => upload.finish(&proof).await.map_err(|error| error.to_string()),
                None => Ok(()),
            };
            // Also without the blob: then others read ranges of the registry's.
            let kept = if keeps_index { keep_index(&shared, indexed).await } else { Ok(()) };
            let is_there = copied.is_ok() || (keeps_index && kept.is_ok());
            // Otherwise the claim stays: a host that listed the layer before it was there must not claim it now.
            if let Some(claim) = claim.filter(|_| !is_there) {
                claim.release().await;
            }
            copied.and(kept).err()
        });
    }

    /// Waits until what was streamed is in the tier, within a limit. Returns lines about what is not.
    pub(super) async fn finish(&self) -> Vec<String> {
        let mut finishing = std::mem::take(&mut *self.finishing.lock());
        let (limit, mut problems) = (if self.is_patient { PATIENT_FINISH } else { FINISH }, Vec::new());
        let all = async {
            while let Some(done) = finishing.join_next().await {
                problems.extend(done.ok().flatten());
            }
        };
        if timeout(limit, all).await.is_err() {
            problems.push(format!("the tier {} does not take the layers in time", self.tier.location()));
        }
        problems
    }
}

fn is_shared(blob: &Blob) -> bool {
    blob.size >= LEAST_BYTES
}

async fn keep_index(shared: &SharedLayer, indexed: Indexed) -> Result<(), String> {
    let encoded = tokio::task::spawn_blocking(move || artifact::quick_blob(&[indexed])).await;
    let bytes = encoded.map_err(|error| error.to_string())??;
    if bytes.len() > INDEX_BYTES {
        return Err("the index of a layer is too large for the tier".to_owned());
    }
    shared.keep_index(&Verified::seal(bytes)).await.map_err(|error| error.to_string())
}

/// How this host obtains a layer.
pub(super) enum Turn<'a> {
    /// Another host has made its index.
    Indexed(Box<Usable>),
    /// By streaming it now. With a copy, for all hosts.
    Stream { copy: Option<Copy>, permit: Option<SemaphorePermit<'a>> },
}

/// What becomes of a layer that this host streams, for all.
pub(super) struct Copy {
    /// None: only its index is missing in the tier.
    claim: Option<Claim>,
    upload: Option<Upload>,
}

impl Copy {
    /// The next bytes of the blob.
    pub(super) async fn push(&mut self, piece: &Bytes) {
        if let Some(claim) = &self.claim {
            claim.progressed(piece.len() as u64);
        }
        if let Some(upload) = &mut self.upload {
            upload.push(piece).await;
        }
    }

    /// The bytes so far are not those of the blob: they are not kept.
    pub(super) fn give_up(&mut self) {
        self.upload = None;
    }

    /// Another host may stream the layer.
    pub(super) async fn release(self) {
        if let Some(claim) = self.claim {
            claim.release().await;
        }
    }
}

//! The state that all images of this host share, and the construction of its parts.

use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_blob::{ObjectStore, StoreError};
use tarpon_layer::ObjectId;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::bypass::Bypass;
use crate::checks::Checks;
use crate::config::{Config, FIRST_CHUNKS};
use crate::contents::Contents;
use crate::disputes::Disputes;
use crate::error::{PieceError, ReadError};
use crate::failures::Failures;
use crate::flight::Flights;
use crate::held_inodes::HeldInodes;
use crate::ids::{ImageId, ListId};
use crate::image::{Claims, Image, Images};
use crate::lanes::Lanes;
use crate::local::OpenObjects;
use crate::lru::Lru;
use crate::object::{AllParts, Object};
use crate::runtime::Runtime;
use crate::stats::Counters;
use crate::stream::pass::Passes;

/// The state behind a [`crate::Fetcher`].
pub(crate) struct FetchHost {
    pub(crate) config: Config,
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) images: Images,
    pub(crate) flights: Arc<Flights>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) open: OpenObjects,
    pub(crate) checks: Checks,
    pub(crate) bypass: Arc<Bypass>,
    pub(crate) contents: Contents,
    pub(crate) counters: Arc<Counters>,
    pub(crate) passes: Passes,
    pub(crate) disputes: Disputes,
    /// Reads that timed out before any piece was late: the second request of the kernel must not wait as long again.
    pub(crate) late_reads: Failures,
    pub(crate) inodes: HeldInodes,
    /// Attempts to decode the first chunk of a piece before the rest has arrived.
    pub(crate) first_chunks: Arc<Semaphore>,
    /// Number of objects that are being made local files.
    pub(crate) publishing: watch::Sender<usize>,
    parts: AllParts,
    objects: Mutex<Lru<(ObjectId, ImageId), Arc<Object>>>,
}

impl FetchHost {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, runtime: Handle, config: Config) -> Self {
        Self {
            runtime: Runtime::new(runtime, config.blocking_threads),
            store,
            images: Images::default(),
            flights: Arc::new(Flights::new(&config)),
            lanes: Arc::new(Lanes::new(&config)),
            open: OpenObjects::new(config.open_files),
            checks: Checks::default(),
            bypass: Arc::new(Bypass::new(config.bypass_bytes)),
            contents: Contents::default(),
            counters: Arc::default(),
            passes: Passes::default(),
            disputes: Disputes::new(&config),
            late_reads: Failures::new(config.outage_memo),
            inodes: HeldInodes::default(),
            first_chunks: Arc::new(Semaphore::new(FIRST_CHUNKS)),
            publishing: watch::Sender::default(),
            parts: AllParts::default(),
            objects: Mutex::new(Lru::new(config.live_objects)),
            config,
        }
    }

    /// A host that shares this one's counters and request budgets only.
    pub(crate) fn beside(&self, store: Arc<dyn ObjectStore>) -> Self {
        let new = Self::new(store, self.runtime.handle().clone(), self.config.clone());
        Self { lanes: self.lanes.clone(), counters: self.counters.clone(), ..new }
    }

    /// The object with the chunk list of this image.
    pub(crate) fn object_in(&self, image: &Arc<Image>, id: &ObjectId) -> Option<Arc<Object>> {
        let key = (*id, image.id);
        let mut objects = self.objects.lock();
        if let Some(object) = objects.get(&key) {
            return Some(object.clone());
        }
        let entry = image.table.find(id)?;
        let mut parts = None;
        if !image.is_own_proof(id, &entry) {
            // Released first: hashing a long list must not block others.
            drop(objects);
            parts = Some(self.parts.of(*id, image.list_id(&entry)));
            objects = self.objects.lock();
            if let Some(object) = objects.get(&key) {
                return Some(object.clone());
            }
        }
        let object = Arc::new(Object::new(*id, image.clone(), entry, parts));
        objects.insert(key, object.clone(), 1);
        Some(object)
    }

    /// As [`FetchHost::object_in`], if the object has state already.
    pub(crate) fn live_object(&self, image: &Arc<Image>, id: &ObjectId) -> Option<Arc<Object>> {
        self.objects.lock().get(&(*id, image.id)).cloned()
    }

    /// Whether the object's partial file may be emptied at any moment, because the whole may differ from its name.
    pub(crate) fn in_doubt(&self, object: &Object) -> bool {
        let refuted = |list| self.images.verdict(&object.id, list) == Some(false);
        object.is_publishing() || object.parts.as_ref().is_some_and(|parts| refuted(&parts.list))
    }

    /// Removes the state of an object that is a local file now, or worthless.
    pub(crate) fn forget_object(&self, object: &Object) {
        self.objects.lock().remove(&(object.id, object.image.id));
    }

    /// Removes the state of the objects of a removed image.
    pub(crate) fn forget_image(&self, image: ImageId) {
        self.images.remove(image);
        self.objects.lock().retain(|(_, of), _| *of != image);
    }

    /// Pauses read-ahead after the store refused a write. Chunks that readers requested are still offered to it, because the store
    /// itself decides when to retry the disk.
    pub(crate) fn store_refused(&self, error: &StoreError) {
        tracing::debug!(%error, "the store refused bytes; reads continue without it");
        self.bypass.activate(Instant::now() + self.config.bypass_pause);
    }

    /// Records the result of hashing the partial file. A true list is recorded only where another image contradicts it. Elsewhere
    /// the record would only make all readers check again what is agreed on.
    pub(crate) fn was_hashed(&self, object: &Object, list: ListId, is_true: bool) {
        if !is_true || matches!(self.images.claims(&object.id), Claims::Disputed(_)) {
            self.record_verdict(object.id, list, is_true);
        } else {
            self.inodes.confirm(&object.id, list);
        }
    }

    /// Records that the whole object was hashed, and whether this list is true.
    pub(crate) fn record_verdict(&self, id: ObjectId, list: ListId, is_true: bool) {
        self.images.record_verdict(id, list, is_true);
        if is_true {
            self.inodes.confirm(&id, list);
        }
    }

    /// The error of a read that reached its deadline.
    pub(crate) fn late(&self, id: &ObjectId) -> ReadError {
        let cause = PieceError::Late(self.config.read_deadline);
        match self.images.first_holding(id) {
            Some((image, _)) => ReadError::Fetch { object: *id, image: image.name.clone(), cause },
            None => ReadError::UnknownObject(*id),
        }
    }
}

//! The registered images, and the claims of their chunk tables about an object.
//!
//! A **chunk list** is one table's description of an object. Chunks are checked against their list; whether the list itself is true is known
//! only when the whole object has been hashed. A list is untrusted input, so an object that several images claim is served chunk by chunk
//! only while all of them have the same list (see `dispute.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tarpon_blob::{BlobSource, LogLimit};
use tarpon_layer::chunks::{ChunkTable, ObjectEntry};
use tarpon_layer::{Chunk, ChunkPlace, ObjectId};
use tarpon_oci::{Digest, Hasher};

use crate::breaker::Breaker;
use crate::distrust::Distrusted;
use crate::error::{PieceError, ReadError};
use crate::ids::{ImageId, ListId};
use crate::journal::{Event, Journal};
use crate::lanes::Budget;
use crate::ledger::Ledger;
use crate::observed::{Observed, Observers, ReadObserver};
use crate::prefetch::governor::state::Governor;
use crate::prefetch::policy::Prefetch;
use crate::stats::Tally;

/// A registered image.
pub(crate) struct Image {
    pub(crate) id: ImageId,
    pub(crate) name: Arc<str>,
    pub(crate) table: ChunkTable<Bytes>,
    pub(crate) source: Arc<dyn BlobSource>,
    pub(crate) distrusted: Distrusted,
    pub(crate) budget: Budget,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) tally: Tally,
    pub(crate) governor: Arc<Governor>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) log: ImageLog,
    pub(crate) early: Ledger,
    pub(crate) observed: Observed,
    pub(crate) prefetch: Arc<Prefetch>,
}

/// The limits of the lines that readers of one image can trigger, by cause.
#[derive(Debug, Default)]
pub(crate) struct ImageLog {
    /// The source did not answer.
    pub(crate) silent: LogLimit,
    /// The source answered, but without bytes.
    pub(crate) refused: LogLimit,
    /// Bytes did not match their digest.
    pub(crate) corrupt: LogLimit,
    /// An object differs from what the index states.
    pub(crate) refuted: LogLimit,
}

impl ImageLog {
    /// The limit of lines about this failure.
    pub(crate) fn of(&self, error: &PieceError) -> &LogLimit {
        match error {
            PieceError::Corrupt { .. } => &self.corrupt,
            error if error.is_outage() => &self.silent,
            _ => &self.refused,
        }
    }
}

/// Maximum number of sources that one request tries.
const SOURCES: usize = 8;

/// All registered images, in the order of registration.
#[derive(Default)]
pub(crate) struct Images {
    list: RwLock<(u64, Vec<Arc<Image>>)>,
    /// Lists whose objects were hashed as a whole, and whether they are true; bounded by the tables' entries.
    verdicts: Mutex<HashMap<ObjectId, Vec<(ListId, bool)>>>,
    /// Changes with every added or removed image and with every verdict: a result of [`Images::claims`] holds until then.
    generation: AtomicU64,
    /// Entries of the ledgers of all images.
    pub(crate) open_early: Arc<AtomicU64>,
    /// Numbers of observers of all images.
    pub(crate) observers: Arc<Observers>,
}

/// An image that has an object, and its entry for it.
pub(crate) type Claimant = (Arc<Image>, ObjectEntry);

/// The claims of the registered images about an object. A list that is known to be false does not count. If one is known to be
/// true, no other counts.
pub(crate) enum Claims {
    /// No image has it.
    Unknown,
    /// All lists are equal, or true. At most [`SOURCES`] images, always in the same order, so that readers of different images request the
    /// same bytes of the same image and share one request.
    Agreed(Vec<Claimant>),
    /// The lists contradict each other, or replace one that is distrusted.
    Disputed(Vec<Claimant>),
    /// Every list was found to be false.
    Refuted,
    /// The layers that have it are distrusted.
    Distrusted(Claimant),
}

impl Images {
    /// Registers the image that `make` builds with its new id.
    pub(crate) fn add(&self, make: impl FnOnce(ImageId) -> Image) -> Arc<Image> {
        let mut list = self.list.write();
        list.0 += 1;
        let image = Arc::new(make(ImageId::new(list.0)));
        list.1.push(image.clone());
        self.changed();
        image
    }

    /// Calls `with` for each image.
    pub(crate) fn each(&self, with: impl Fn(&Image)) {
        self.list.read().1.iter().for_each(|image| with(image));
    }

    pub(crate) fn remove(&self, id: ImageId) {
        self.list.write().1.retain(|image| image.id != id);
        self.changed();
    }

    /// The whole object was hashed: the list is true or false.
    pub(crate) fn record_verdict(&self, object: ObjectId, list: ListId, is_true: bool) {
        let mut verdicts = self.verdicts.lock();
        let lists = verdicts.entry(object).or_default();
        lists.retain(|(known, _)| *known != list);
        lists.push((list, is_true));
        self.changed();
    }

    /// Whether the list is true, if that is known.
    pub(crate) fn verdict(&self, object: &ObjectId, list: &ListId) -> Option<bool> {
        let verdicts = self.verdicts.lock();
        verdicts.get(object)?.iter().find(|(known, _)| known == list).map(|(_, is_true)| *is_true)
    }

    /// Results about claims hold as long as this number stays the same.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Invalidates results about claims.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// The claims of all images about the object.
    pub(crate) fn claims(&self, object: &ObjectId) -> Claims {
        let list = self.list.read();
        let claim = |image: &Arc<Image>| image.claim(object).map(|entry| (image.clone(), entry));
        let mut claimants: Vec<Claimant> = list.1.iter().filter_map(claim).collect();
        drop(list);
        if claimants.is_empty() {
            return self.first_holding(object).map_or(Claims::Unknown, Claims::Distrusted);
        }
        // Such a name is a hash that was computed here: a list that takes it for the digest of content is false.
        if claimants.iter().any(|(image, entry)| !image.names_content(entry)) {
            claimants.retain(|(image, entry)| !image.names_content(entry));
        }
        let verdicts = self.verdicts.lock().get(object).cloned();
        if let Some(verdicts) = verdicts {
            let is = |(image, entry): &Claimant, verdict| verdicts.contains(&(image.list_id(entry), verdict));
            if claimants.iter().any(|claimant| is(claimant, true)) {
                claimants.retain(|claimant| is(claimant, true));
                claimants.truncate(SOURCES);
                return Claims::Agreed(claimants);
            }
            claimants.retain(|claimant| !is(claimant, false));
            if claimants.is_empty() {
                return Claims::Refuted;
            }
        }
        let all_same = claimants.windows(2).all(|pair| same_list(&pair[0], &pair[1]));
        if !all_same || self.replaces_distrusted(object, &claimants) {
            return Claims::Disputed(claimants);
        }
        claimants.truncate(SOURCES);
        Claims::Agreed(claimants)
    }

    /// Whether an image has the object in a distrusted layer. Its readers name only the object, so they would get the bytes that
    /// the list of another image states, for which their own image does not vouch: that list must be true. Names that are no
    /// digests of content are made from the layer and the place in it, so only lists of the same layer have them.
    fn replaces_distrusted(&self, object: &ObjectId, claimants: &[Claimant]) -> bool {
        let list = self.list.read();
        list.1.iter().any(|image| image.distrusts(object))
            && claimants.iter().any(|(image, entry)| image.names_content(entry) && !image.is_own_proof(object, entry))
    }

    /// Objects of any image whose names start with the first `bits` bits of `start`: all of them, or two.
    pub(crate) fn starting_with(&self, start: u64, bits: u32) -> Vec<ObjectId> {
        let mut found: Vec<ObjectId> = Vec::new();
        for object in self.list.read().1.iter().flat_map(|image| image.table.starting_with(start, bits)) {
            if !found.contains(&object) {
                found.push(object);
            }
            if found.len() == 2 {
                break;
            }
        }
        found
    }

    /// The first image that has the object.
    pub(crate) fn first_holding(&self, object: &ObjectId) -> Option<(Arc<Image>, ObjectEntry)> {
        let list = self.list.read();
        list.1.iter().find_map(|image| image.table.find(object).map(|entry| (image.clone(), entry)))
    }

    /// The images that have the object and an observer of a read that waited so long, with their observers and the object's size.
    pub(crate) fn observers_of(
        &self,
        object: &ObjectId,
        waited: Duration,
    ) -> Vec<(Arc<Image>, Arc<dyn ReadObserver>, u64)> {
        let list = self.list.read();
        let observed = list.1.iter().filter_map(|image| {
            let observer = image.observed.by(waited)?;
            Some((image.clone(), observer, image.table.find(object)?.size))
        });
        observed.collect()
    }

    /// The images whose sources have the layer: `first`, then the others.
    pub(crate) fn serving(&self, layer: &Digest, first: &Arc<Image>) -> Vec<Arc<Image>> {
        let list = self.list.read();
        let others = list.1.iter().filter(|image| image.id != first.id && image.has_layer(layer)).cloned();
        std::iter::once(first.clone()).chain(others).take(SOURCES).collect()
    }
}

/// A list's description of the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkContent {
    Zeros,
    /// The digest of the bytes.
    Content(Digest),
    /// The digest of the encoded piece, and the offset in the decoded one.
    Encoded(Digest, u64),
}

impl ChunkContent {
    fn of(chunk: &Chunk) -> Self {
        match chunk.place {
            ChunkPlace::Zeros => Self::Zeros,
            ChunkPlace::Blob { codec, .. } if codec.names_content() => Self::Content(chunk.digest),
            ChunkPlace::Blob { skip, .. } => Self::Encoded(chunk.digest, skip),
        }
    }

    /// Different descriptions give different input to the hash.
    fn hash(&self, hasher: &mut Hasher) {
        match self {
            Self::Zeros => hasher.update(&[0]),
            Self::Content(digest) => {
                hasher.update(&[1]);
                hasher.update(digest.as_bytes());
            }
            Self::Encoded(digest, skip) => {
                hasher.update(&[2]);
                hasher.update(digest.as_bytes());
                hasher.update(&skip.to_le_bytes());
            }
        }
    }
}

/// Whether two images have the same list of an object.
fn same_list((one, a): &Claimant, (other, b): &Claimant) -> bool {
    let length = a.chunks.len();
    a.size == b.size && length == b.chunks.len() && one.content(a).eq(other.content(b))
}

impl Image {
    /// The sizes of the object's chunks, and the descriptions of their bytes.
    fn content(&self, entry: &ObjectEntry) -> impl Iterator<Item = (u64, ChunkContent)> {
        let chunks = entry.chunks.clone().map_while(|number| self.table.chunk(number));
        chunks.map(|entry| (entry.chunk.size, ChunkContent::of(&entry.chunk)))
    }

    /// Whether the object's name is the digest of its bytes. Otherwise the name was computed here from the index and the position of the bytes
    /// ([`tarpon_layer::soci`]): then hashing the bytes proves nothing, and the object never becomes a local file. A table checks all
    /// chunks of an object in the same way.
    pub(crate) fn names_content(&self, entry: &ObjectEntry) -> bool {
        self.table.chunk(entry.chunks.start).is_none_or(|entry| entry.chunk.place.names_content())
    }

    /// The id of this image's list of the object.
    pub(crate) fn list_id(&self, entry: &ObjectEntry) -> ListId {
        let mut hasher = Hasher::new();
        hasher.update(&entry.size.to_le_bytes());
        for (size, content) in self.content(entry) {
            hasher.update(&size.to_le_bytes());
            content.hash(&mut hasher);
        }
        ListId::new(hasher.finish())
    }

    /// Whether the object is one chunk with the same digest: then bytes that match the chunk are the object, and the list cannot be false.
    pub(crate) fn is_own_proof(&self, object: &ObjectId, entry: &ObjectEntry) -> bool {
        let is_object = |chunk: Chunk| chunk.content_digest() == Some(object) && chunk.size == entry.size;
        entry.chunks.len() == 1 && self.table.chunk(entry.chunks.start).is_some_and(|entry| is_object(entry.chunk))
    }

    /// Reports that this image's list of the object is false.
    pub(crate) fn report_refuted(&self, object: &ObjectId) {
        let text = format!("object {object} of {} is not what its index states", self.name);
        if let Some(left_out) = self.log.refuted.admit() {
            tracing::error!("{text}{left_out}");
        }
        self.tally.failed(&text);
        self.tally.add(|counters| &counters.poisoned_objects, 1);
        self.journal.note(Event::Refuted { object: *object });
    }

    fn has_layer(&self, layer: &Digest) -> bool {
        (0..self.table.layer_count())
            .any(|number| self.table.layer(number).is_some_and(|known| known.blob.digest == *layer))
    }

    /// The entry of the object in the chunk table, unless its layer is distrusted.
    pub(crate) fn claim(&self, object: &ObjectId) -> Option<ObjectEntry> {
        let entry = self.table.find(object)?;
        self.distrust_of(&entry).is_none().then_some(entry)
    }

    /// Whether the object is in a distrusted layer.
    fn distrusts(&self, object: &ObjectId) -> bool {
        !self.distrusted.is_empty() && self.table.find(object).is_some_and(|entry| self.distrust_of(&entry).is_some())
    }

    /// Whether the layer with this number is distrusted.
    pub(crate) fn is_distrusted(&self, layer: u16) -> bool {
        if self.distrusted.is_empty() {
            return false;
        }
        self.table.layer(layer).is_some_and(|layer| self.distrusted.reason(&layer.blob.digest).is_some())
    }

    /// The distrusted layer of the object, and the reason.
    fn distrust_of(&self, entry: &ObjectEntry) -> Option<(Digest, Arc<str>)> {
        if self.distrusted.is_empty() {
            return None;
        }
        entry.chunks.clone().find_map(|number| {
            let chunk = self.table.chunk(number)?;
            let layer = self.table.layer(chunk.layer)?.blob.digest;
            Some((layer, self.distrusted.reason(&layer)?))
        })
    }

    /// The error of a read of an object that is not served; counts it.
    pub(crate) fn refuse_distrusted(&self, object: &ObjectId) -> ReadError {
        let distrust = self.table.find(object).and_then(|entry| self.distrust_of(&entry));
        let Some((layer, reason)) = distrust else { return ReadError::UnknownObject(*object) };
        let error = ReadError::Distrusted { object: *object, image: self.name.clone(), layer, reason };
        self.tally.image.failed_reads.add(1);
        self.tally.failed(&error);
        error
    }
}

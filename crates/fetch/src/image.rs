//! The images that are registered, and what their chunk tables say about an object or a place.
//!
//! A **chunk list** is what one table says an object consists of. Chunks are checked against the list that names them; that the list
//! itself is true is known only when the whole object has been hashed. Anybody can write a list, so of an object that several
//! images claim nothing is handed out chunk by chunk unless all of them say the same of it (see `dispute.rs`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tarpon_blob::BlobSource;
use tarpon_layer::chunks::{ChunkTable, ObjectEntry};
use tarpon_layer::{Chunk, ObjectId, Place};
use tarpon_oci::{Digest, Hasher};

use crate::allowance::Allowance;
use crate::breaker::Breaker;
use crate::distrust::Distrusted;
use crate::error::ReadError;
use crate::governor::state::Governor;
use crate::ids::{ImageId, ListId};
use crate::image_log::ImageLog;
use crate::journal::{Event, Journal};
use crate::lanes::Budget;
use crate::ledger::Ledger;
use crate::pack::places::Pack;
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
    /// What may be brought beside readers' own pieces.
    pub(crate) allowance: Allowance,
    /// What a recorded start touched, where that is had faster than from the layers.
    pub(crate) pack: OnceLock<Arc<Pack>>,
}

/// Sources that one request tries in turn.
const SOURCES: usize = 8;

/// All registered images, in the order in which they came.
#[derive(Default)]
pub(crate) struct Images {
    list: RwLock<(u64, Vec<Arc<Image>>)>,
    /// Lists whose objects were hashed as a whole, and whether they are true; bounded by what the tables name.
    judged: Mutex<HashMap<ObjectId, Vec<(ListId, bool)>>>,
    /// Changes with every image that comes or goes and every list that is judged: what was agreed on holds until then.
    generation: AtomicU64,
    /// Chunks that were brought early and that nobody has read, of all images.
    pub(crate) open_early: Arc<AtomicU64>,
}

/// An image that has an object, and its word on it.
pub(crate) type Claimant = (Arc<Image>, ObjectEntry);

/// What the registered images say of an object. A list that is known to be false does not count; if one is known to be true, no
/// other counts.
pub(crate) enum Claims {
    /// Nobody has it.
    Unknown,
    /// All say the same, or the truth. At most [`SOURCES`], always in the same order, so that readers of different images ask for the same
    /// bytes of the same image and share one request.
    Agreed(Vec<Claimant>),
    /// They contradict each other.
    Disputed(Vec<Claimant>),
    /// Every list of it was found to be wrong.
    Refuted,
    /// The image that has it lies about the layer: nothing more is taken out of that.
    Distrusted(Claimant),
}

impl Images {
    /// Registers the image that `make` builds around its new name.
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

    /// The whole object was hashed as this list has it.
    pub(crate) fn judge(&self, object: ObjectId, list: ListId, is_true: bool) {
        let mut judged = self.judged.lock();
        let lists = judged.entry(object).or_default();
        lists.retain(|(known, _)| *known != list);
        lists.push((list, is_true));
        self.changed();
    }

    /// Whether the list is true, if that is known.
    pub(crate) fn judgement(&self, object: &ObjectId, list: &ListId) -> Option<bool> {
        let judged = self.judged.lock();
        judged.get(object)?.iter().find(|(known, _)| known == list).map(|(_, is_true)| *is_true)
    }

    /// Whatever was found out about claims holds as long as this stays the same.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// What was agreed on must be looked at again.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// What the images say of the object.
    pub(crate) fn claims(&self, object: &ObjectId) -> Claims {
        let list = self.list.read();
        let all = list.1.iter().filter_map(|image| Some((image.clone(), image.claim(object)?)));
        let mut claimants: Vec<Claimant> = all.collect();
        drop(list);
        if claimants.is_empty() {
            return self.first_holding(object).map_or(Claims::Unknown, Claims::Distrusted);
        }
        // Such a name is a hash of what it means, and was made here: who takes it for the digest of some bytes lies.
        if claimants.iter().any(|(image, entry)| !image.names_content(entry)) {
            claimants.retain(|(image, entry)| !image.names_content(entry));
        }
        let judged = self.judged.lock().get(object).cloned();
        if let Some(judged) = judged {
            let is = |(image, entry): &Claimant, judgement| judged.contains(&(image.list_id(entry), judgement));
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
        if !claimants.windows(2).all(|pair| same_list(&pair[0], &pair[1])) {
            return Claims::Disputed(claimants);
        }
        claimants.truncate(SOURCES);
        Claims::Agreed(claimants)
    }

    /// The first image that has the object.
    pub(crate) fn first_holding(&self, object: &ObjectId) -> Option<(Arc<Image>, ObjectEntry)> {
        let list = self.list.read();
        list.1.iter().find_map(|image| Some((image.clone(), image.table.find(object)?)))
    }

    /// The images whose sources have the layer: `first`, then the others.
    pub(crate) fn serving(&self, layer: &Digest, first: &Arc<Image>) -> Vec<Arc<Image>> {
        let list = self.list.read();
        let others = list.1.iter().filter(|image| image.id != first.id && image.has_layer(layer)).cloned();
        std::iter::once(first.clone()).chain(others).take(SOURCES).collect()
    }
}

/// What a list says of the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Zeros,
    /// Their digest.
    Content(Digest),
    /// They come after so many that this piece decodes to.
    Encoded(Digest, u64),
}

impl Said {
    fn of(chunk: &Chunk) -> Self {
        match chunk.place {
            Place::Zeros => Self::Zeros,
            Place::Blob { codec, .. } if codec.names_content() => Self::Content(chunk.digest),
            Place::Blob { skip, .. } => Self::Encoded(chunk.digest, skip),
        }
    }

    /// Different for all that say something different.
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

/// Whether two images say the same of an object.
fn same_list((one, a): &Claimant, (other, b): &Claimant) -> bool {
    let length = a.chunks.len();
    a.size == b.size && length == b.chunks.len() && one.content(a).eq(other.content(b))
}

impl Image {
    /// The sizes of the object's chunks, and what their bytes are said to be.
    fn content(&self, entry: &ObjectEntry) -> impl Iterator<Item = (u64, Said)> {
        let chunks = entry.chunks.clone().map_while(|number| self.table.chunk(number));
        chunks.map(|entry| (entry.chunk.size, Said::of(&entry.chunk)))
    }

    /// Whether the object's name is the digest of its bytes. If not, it is one that was made here of the index and the place that
    /// it says they are at ([`tarpon_layer::soci`]): then the bytes cannot be hashed to see whether they are the object, and
    /// it never becomes a local file. A table checks all chunks of an object in one way.
    pub(crate) fn names_content(&self, entry: &ObjectEntry) -> bool {
        self.table.chunk(entry.chunks.start).is_none_or(|entry| entry.chunk.place.names_content())
    }

    /// The name of this image's list of the object.
    pub(crate) fn list_id(&self, entry: &ObjectEntry) -> ListId {
        let mut hasher = Hasher::new();
        hasher.update(&entry.size.to_le_bytes());
        for (size, said) in self.content(entry) {
            hasher.update(&size.to_le_bytes());
            said.hash(&mut hasher);
        }
        ListId::new(hasher.finish())
    }

    /// Whether the object is one chunk of its own digest: then whatever matches the chunk is the object, and there is
    /// nothing that a list could lie about.
    pub(crate) fn is_own_proof(&self, object: &ObjectId, entry: &ObjectEntry) -> bool {
        let is_object = |chunk: Chunk| chunk.content_digest() == Some(object) && chunk.size == entry.size;
        entry.chunks.len() == 1 && self.table.chunk(entry.chunks.start).is_some_and(|entry| is_object(entry.chunk))
    }

    /// Its list of the object is not true.
    pub(crate) fn accuse(&self, object: &ObjectId) {
        let text = format!("object {object} of {} is not what its index promises", self.name);
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

    /// The entry of the object in the chunk table, unless a layer that it lies in is distrusted.
    pub(crate) fn claim(&self, object: &ObjectId) -> Option<ObjectEntry> {
        let entry = self.table.find(object)?;
        self.distrust_of(&entry).is_none().then_some(entry)
    }

    /// Whether the layer with this number is distrusted.
    pub(crate) fn is_distrusted(&self, layer: u16) -> bool {
        if self.distrusted.is_empty() {
            return false;
        }
        self.table.layer(layer).is_some_and(|layer| self.distrusted.reason(&layer.blob.digest).is_some())
    }

    /// The distrusted layer that the object lies in, and the reason.
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

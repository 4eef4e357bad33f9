//! The images whose objects this server can fetch.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_blob::BlobSource;
use tarpon_client::protocol::MountRequest;
use tarpon_fetch::{Background, BootIndex, Fetcher, ImageHandle, PackOrigin, Stats};
use tarpon_images::index::places;
use tarpon_images::sources::{OpenedImage, Sources};
use tarpon_images::{Access, PREDICTED_PROFILE, access};
use tarpon_layer::chunks::ChunkTable;
use tarpon_mount::TreeFile;
use tarpon_oci::{Blob, Digest};
use tarpon_store::{ImageRecord, ImageState, Part, PartRecord, Store};
use tarpon_trace::Trace;

use super::counters::{ImageKey, KeptCounters, Transfers};
use super::early::EarlyPack;
use super::elsewhere::PackElsewhere;
use super::endpoints::ImageEndpoints;
use super::hints;
use super::prepared_bytes::PreparedBytes;
use super::ready::ReadyImages;
use super::start::Start;
use crate::{Error, ErrorKind, Result, ResultExt};

/// An image that was loaded from its record and registered with the fetcher.
pub struct LoadedImage {
    pub(crate) record: ImageRecord,
    pub(crate) tree: TreeFile,
    store: Store,
    repository: Arc<dyn OpenedImage>,
    /// The index repository that has its boot pack.
    pack_repository: Option<Arc<dyn OpenedImage>>,
    endpoints: Arc<ImageEndpoints>,
    handle: ImageHandle,
    pack: Option<PackOrigin>,
    /// Its predicted boot pack, until the replay begins.
    pub(crate) waiting_pack: Mutex<Option<BootIndex>>,
    was_mounted: AtomicBool,
    /// Transfers for this image in earlier servers.
    earlier: Transfers,
    /// The path of its tree file, and the inode that was loaded.
    tree_place: (PathBuf, Option<u64>),
    prepared: PreparedBytes,
    /// When its local objects were last found to be undamaged.
    checked: Mutex<Option<Instant>>,
    checking: Mutex<()>,
    /// The start that is being observed.
    pub(crate) start: Mutex<Option<Arc<Start>>>,
}

/// Minimum interval between two checks of a mounted image's local objects. When many containers start at once, only one checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl LoadedImage {
    /// Verifies the local objects before the kernel reads them directly. Damaged ones are moved out and fetched again when they are read.
    /// Checks the metadata of each object. Hashes those that changed since the last check, and all of them the first time after boot.
    pub(crate) fn check_objects(&self) -> Result<()> {
        // Of concurrent calls, one hashes.
        let _checking = self.checking.lock();
        if self.checked.lock().is_some_and(|at| at.elapsed() < CHECK_INTERVAL) {
            return Ok(());
        }
        let step = "check the image's objects";
        let found = self.store.check_image(&self.record.manifest, &|_| {});
        let found = found.context(ErrorKind::Store, step)?;
        if !found.damaged_images.is_empty() {
            return Err(Error::new(ErrorKind::Store, step, "the list of its objects is damaged").hint(PREPARE_AGAIN));
        }
        if found.bad_objects() > 0 {
            tracing::warn!(
                image = self.handle.name(),
                objects = found.bad_objects(),
                "damaged objects were removed, and are fetched again when they are read"
            );
        }
        *self.checked.lock() = Some(Instant::now());
        Ok(())
    }

    /// Whether this is the first mount. Then all bytes fetched so far for the image count for this mount.
    pub(crate) fn is_first_mount(&self) -> bool {
        !self.was_mounted.swap(true, Ordering::Relaxed)
    }

    /// The current record. A pull since it was loaded may have verified more of its layers.
    pub(crate) fn record_now(&self) -> ImageRecord {
        let now = self.store.image(&self.record.manifest).ok().flatten();
        now.unwrap_or_else(|| self.record.clone())
    }

    /// The prepared bytes of the current record, which is read only if it has changed.
    pub(crate) fn prepared_bytes(&self) -> u64 {
        let read = || Some(self.store.image(&self.record.manifest).ok()??.prepared_bytes);
        let now = self.tree_place.0.parent().and_then(|folder| self.prepared.now(folder, read));
        now.unwrap_or(self.record.prepared_bytes)
    }

    /// The tree of the image, in the format of EROFS.
    pub fn tree(&self) -> Bytes {
        self.tree.bytes.clone()
    }

    /// Whether a boot pack provides parts of it.
    pub fn has_pack(&self) -> bool {
        self.pack.is_some()
    }

    /// Whether a boot pack provides all that a start reads.
    pub(crate) fn has_recorded_pack(&self) -> bool {
        self.pack == Some(PackOrigin::Recorded)
    }

    /// The contents of its predicted boot pack, if the replay of it has not begun.
    pub(crate) fn predicted(&self) -> HashSet<Digest> {
        let pack = self.waiting_pack.lock();
        let pieces = pack.iter().flat_map(|pack| &pack.frames).flat_map(|frame| &frame.pieces);
        pieces.map(|piece| piece.object).collect()
    }

    /// Starts the replay of its predicted boot pack, if there is one, once.
    pub(crate) fn replay_predicted(&self) {
        if let Some(pack) = self.waiting_pack.lock().take() {
            self.handle.replay_predicted(&pack);
        }
    }

    /// Starts to fetch what the trace, or else the landmarks of the layers, name. `false`: neither names anything, or a boot pack does it.
    pub(crate) fn follow(&self, trace: Option<&Trace>) -> bool {
        // A predicted pack is more precise than landmarks, and lacks what a trace may have.
        let is_needed = if trace.is_some() { !self.has_recorded_pack() } else { !self.has_pack() };
        is_needed && hints::follow(&self.handle, &self.record.layers, trace)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The source of its layers.
    pub fn source(&self) -> Arc<dyn BlobSource> {
        self.repository.blobs()
    }

    pub(crate) fn counters(&self) -> Stats {
        self.handle.stats()
    }

    /// Whether the registry ignores ranges and replies with the full blob.
    pub(crate) fn ignores_ranges(&self) -> bool {
        self.repository.ignores_ranges()
    }

    /// Its handle at the fetcher.
    pub(crate) fn handle(&self) -> &ImageHandle {
        &self.handle
    }

    /// As [`ImageHandle::contested_inode`].
    pub(crate) fn contested_inode(&self) -> Option<Digest> {
        self.handle.contested_inode()
    }

    /// Transfers for this image, including retries and tokens, and those of earlier servers.
    pub(crate) fn transfers(&self) -> Transfers {
        let own = self.earlier.plus(self.repository.stats().into());
        self.pack_repository.as_ref().map_or(own, |repository| own.plus(repository.stats().into()))
    }

    /// The hosts that serve it.
    pub(crate) fn endpoints(&self) -> &ImageEndpoints {
        &self.endpoints
    }

    /// Those of earlier servers.
    pub(crate) fn earlier_transfers(&self) -> Transfers {
        self.earlier
    }
}

/// The hint for an image with a damaged record.
const PREPARE_AGAIN: &str = "mount it again with `tarpon mount`: its record is made again then, from the registry";

/// Longest wait for another mount that loads the same image. Less than a client waits for its response.
const LOAD_WAIT: Duration = Duration::from_secs(30);

/// Maximum number of boot packs that are fetched early at the same time.
const EARLY_PACKS: usize = 4;

/// A boot pack, and the repository or layout that has it, if that is not the image's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackPlace {
    pub(crate) blob: Blob,
    pub(crate) place: Option<String>,
}

/// An image whose boot pack is being fetched early.
struct Early {
    image: String,
    access: Access,
    /// Connected, with its tokens.
    repository: Arc<dyn OpenedImage>,
    /// The index repository that has the pack, and its place.
    elsewhere: Option<(String, Arc<dyn OpenedImage>)>,
    pack: Weak<EarlyPack>,
}

impl Early {
    fn is(&self, image: &str, access: &Access) -> bool {
        self.image == image && self.access == *access
    }
}

/// Whether the boot pack of one more image may be fetched early. `false`: this image's pack is already, or enough others are.
fn may_fetch_early(early: &mut Vec<Early>, image: &str, access: &Access) -> bool {
    early.retain(|early| early.pack.strong_count() > 0);
    early.len() < EARLY_PACKS && !early.iter().any(|early| early.is(image, access))
}

/// Fetches a boot pack behind more urgent work, and holds `user` until the pack is read, or for a while.
async fn fetch_early<T>(pack: Arc<EarlyPack>, source: Arc<dyn BlobSource>, fetcher: Fetcher, user: T) {
    let give_way = || {
        let fetcher = fetcher.clone();
        async move { fetcher.turn(Background::EarlyPack).await }
    };
    futures::join!(pack.prefetch(source, give_way), pack.forget_later(user));
}

/// Identifies an image from one source. A second mount may name another registry or other credentials for the same manifest, and must not
/// depend on those of the first. The fetcher tries all sources of a manifest in turn.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    manifest: Digest,
    reference: String,
    access: Access,
}

/// Images stay registered as long as the server lives, because a lazily unmounted tree may still be read. Each costs two mappings and a few
/// hundred bytes.
pub(crate) struct LoadedImages {
    store: Store,
    fetcher: Fetcher,
    counters: Arc<KeptCounters>,
    sources: Arc<dyn Sources>,
    loaded: Mutex<HashMap<Key, Arc<LoadedImage>>>,
    /// Locks of the images being loaded. Loading takes as long as the disk takes, so no other lock is held meanwhile.
    turns: Mutex<HashMap<Key, Weak<Mutex<()>>>>,
    /// Boot packs that are fetched before their images are available.
    early: Mutex<Vec<Early>>,
    /// Images that were opened before they are mounted.
    ready: Arc<ReadyImages>,
    /// Images whose record was rewritten, as long as they are in use.
    replaced: Mutex<Vec<Weak<LoadedImage>>>,
    /// By manifest: the data that merged trees hide stays fetchable as long as the server lives, like all other data.
    hidden: Mutex<HashMap<Digest, ImageHandle>>,
}

/// An opened image: its own repository, the index repository that has its boot pack, and the source of all its bytes.
struct Opened {
    repository: Arc<dyn OpenedImage>,
    pack_repository: Option<Arc<dyn OpenedImage>>,
    source: Arc<dyn BlobSource>,
}

impl LoadedImages {
    pub(crate) fn new(store: Store, fetcher: Fetcher, counters: Arc<KeptCounters>, sources: Arc<dyn Sources>) -> Self {
        let (loaded, turns, early, ready, replaced, hidden) = Default::default();
        Self { store, fetcher, counters, sources, loaded, turns, early, ready, replaced, hidden }
    }

    pub(crate) fn sources(&self) -> &Arc<dyn Sources> {
        &self.sources
    }

    pub(crate) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// All loaded images.
    pub(crate) fn all(&self) -> Vec<Arc<LoadedImage>> {
        self.loaded.lock().values().cloned().collect()
    }

    /// Loads the image, or reuses it from an earlier mount. Loads of one image are serialized, those of different images are concurrent.
    pub(crate) fn load(&self, request: &MountRequest) -> Result<Arc<LoadedImage>> {
        let key = Key { manifest: request.manifest, reference: request.image.clone(), access: request.access.clone() };
        let turn = self.turn(&key);
        let Some(_mine) = turn.try_lock_for(LOAD_WAIT) else {
            let cause = format!("it is being loaded for another mount, which took more than {} s", LOAD_WAIT.as_secs());
            return Err(Error::new(ErrorKind::Store, "load the image's record", cause));
        };
        let known = self.loaded.lock().get(&key).cloned();
        if let Some(image) = known.filter(|image| self.is_current(image)) {
            self.stop_early(request);
            return Ok(image);
        }
        let image = Arc::new(self.load_new(request)?);
        if let Some(old) = self.loaded.lock().insert(key, image.clone()) {
            let mut replaced = self.replaced.lock();
            replaced.retain(|image| image.strong_count() > 0);
            replaced.push(Arc::downgrade(&old));
        }
        Ok(image)
    }

    /// Uses the credentials of `access` for a loaded image from now on. A later mount with them reuses the image.
    pub(crate) fn renew_credentials(&self, image: &Arc<LoadedImage>, access: &Access) -> Result<()> {
        let Some(credentials) = access::given(access)? else { return Ok(()) };
        image.repository.replace_credentials(credentials);
        let mut loaded = self.loaded.lock();
        let found = loaded.iter().find(|(_, known)| Arc::ptr_eq(known, image)).map(|(key, _)| key.clone());
        // `None`: the record was rewritten since it was loaded.
        let Some(before) = found.filter(|key| key.access.creds != access.creds) else { return Ok(()) };
        let now = Key { access: Access { creds: access.creds.clone(), ..before.access.clone() }, ..before.clone() };
        loaded.remove(&before);
        match loaded.entry(now) {
            // It was mounted with these credentials before: the mounts that use this one keep it.
            Entry::Occupied(_) => self.replaced.lock().push(Arc::downgrade(image)),
            Entry::Vacant(place) => drop(place.insert(image.clone())),
        }
        Ok(())
    }

    /// The lock that a thread holds while it loads this image.
    fn turn(&self, key: &Key) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Mutex::new(()));
        turns.insert(key.clone(), Arc::downgrade(&turn));
        turn
    }

    /// Makes the data that merged trees of the image hide fetchable too. `table` has its locations.
    pub(crate) fn show_hidden(&self, request: &MountRequest, image: &LoadedImage, table: Option<Bytes>) -> Result<()> {
        let mut hidden = self.hidden.lock();
        let Some(table) = table.filter(|_| !hidden.contains_key(&request.manifest)) else { return Ok(()) };
        let table = ChunkTable::open(table).context(ErrorKind::Store, "load the image's record")?;
        hidden.insert(request.manifest, self.fetcher.add_image(table, image.source(), request.image.as_str()));
        Ok(())
    }

    /// Whether the loaded image matches its record and the loaded files are the current ones. The record is rewritten after an index was
    /// found wrong or a file damaged.
    pub(crate) fn is_current(&self, image: &LoadedImage) -> bool {
        let (path, inode) = &image.tree_place;
        match self.store.image_state(&image.record.manifest) {
            Ok(ImageState::Sound(now) | ImageState::Damaged { usable: Some(now), .. }) => {
                mounted_parts(&now).eq(mounted_parts(&image.record)) && inode_at(path) == *inode
            }
            // It was removed while in use, or cannot be checked: what was loaded was undamaged.
            Ok(ImageState::Absent) | Err(_) => true,
            Ok(ImageState::Damaged { usable: None, .. }) => false,
        }
    }

    /// Stops reading from the layer for this image, for all of its sources.
    pub(crate) fn distrust(&self, manifest: &Digest, layer: &Digest, reason: &str) {
        for (_, image) in self.loaded.lock().iter().filter(|(key, _)| key.manifest == *manifest) {
            image.handle.distrust(layer, reason);
        }
        let replaced = self.replaced.lock();
        let used = replaced.iter().filter_map(Weak::upgrade);
        used.filter(|image| image.record.manifest == *manifest).for_each(|image| image.handle.distrust(layer, reason));
    }

    /// Makes the next mount check the image's objects again: while it is not mounted, changes to them go unnoticed.
    pub(crate) fn forget_check(&self, manifest: &Digest) {
        for image in self.all().iter().filter(|image| image.record.manifest == *manifest) {
            *image.checked.lock() = None;
        }
    }

    /// Ends the observation of the image's start, for all of its sources, and stops following hints.
    pub(crate) fn stop_following(&self, manifest: &Digest) {
        let loaded = self.loaded.lock();
        let images: Vec<_> =
            loaded.iter().filter(|(key, _)| key.manifest == *manifest).map(|(_, image)| image.clone()).collect();
        drop(loaded);
        for image in images {
            image.handle.stop_following();
            image.end_start(true);
        }
    }

    /// Returns a future that connects to the registry of an image that is about to be mounted, and holds `user` until it is mounted. `None` if
    /// the image was mounted before, or enough others are expected.
    pub(crate) fn get_ready<T>(
        &self,
        image: String,
        access: Access,
        attempt: u64,
        user: T,
    ) -> Result<Option<impl Future<Output = ()> + use<T>>> {
        if self.loaded.lock().keys().any(|key| key.reference == image && key.access == access) {
            return Ok(None);
        }
        let repository = self.sources.open_later(&image, &access)?;
        Ok(self.ready.clone().add(image, access, attempt, repository, user))
    }

    /// Forgets an image that could not be prepared.
    pub(crate) fn not_ready(&self, image: &str, access: &Access) {
        drop(self.ready.take(image, access));
    }

    /// The image's repository, connected if it was expected.
    fn open_image(&self, image: &str, access: &Access) -> Result<Arc<dyn OpenedImage>> {
        match self.ready.take(image, access) {
            Some(ready) => Ok(ready),
            None => self.sources.open_later(image, access),
        }
    }

    /// Returns a future that fetches the boot pack of an image that is about to be mounted, and holds `user` until it is mounted. `None` if
    /// the pack is already being fetched, or the maximum number of packs is.
    pub(crate) fn prefetch_pack<T>(
        &self,
        image: String,
        access: Access,
        pack: PackPlace,
        user: T,
    ) -> Result<Option<impl Future<Output = ()> + use<T>>> {
        let PackPlace { blob, place } = pack;
        if !may_fetch_early(&mut self.early.lock(), &image, &access) {
            return Ok(None);
        }
        // Opened without the lock. What is ready stays so until it is certain that the pack is fetched with it: else the mount needs it.
        let ready = self.ready.get(&image, &access);
        let repository = ready.map_or_else(|| self.sources.open_later(&image, &access), Ok)?;
        let elsewhere = place.map(|place| Ok::<_, Error>((place.clone(), self.open_place(&place, &image, &access)?)));
        let elsewhere = elsewhere.transpose()?;
        let mut early = self.early.lock();
        if !may_fetch_early(&mut early, &image, &access) {
            return Ok(None);
        }
        // Another attempt may have replaced what was ready.
        let repository = self.ready.take(&image, &access).unwrap_or(repository);
        let source = elsewhere.as_ref().map_or_else(|| repository.blobs(), |(_, repository)| repository.blobs());
        let (pack, fetcher) = (Arc::new(EarlyPack::new(blob)), self.fetcher.clone());
        early.push(Early { image, access, repository, elsewhere, pack: Arc::downgrade(&pack) });
        Ok(Some(fetch_early(pack, source, fetcher, user)))
    }

    /// Takes the image's early boot pack, if it has one, and stops further requests for it.
    fn stop_early(&self, request: &MountRequest) -> Option<(Early, Option<Arc<EarlyPack>>)> {
        let mut early = self.early.lock();
        let place = early.iter().position(|early| early.is(&request.image, &request.access))?;
        let early = early.swap_remove(place);
        let pack = early.pack.upgrade().inspect(|pack| pack.stop());
        Some((early, pack))
    }

    /// Opens the repository or layout that has indexes of an image.
    fn open_place(&self, place: &str, image: &str, access: &Access) -> Result<Arc<dyn OpenedImage>> {
        let image = image.parse().context(ErrorKind::Other, "read the image's name")?;
        self.sources.open_later(place, &places::access_to(place, &image, access))
    }

    /// Opens the image. Its source has the boot pack of `record` too, wherever that is, with the bytes of it that were fetched early.
    fn open(&self, request: &MountRequest, record: &ImageRecord, pack: Option<&BootIndex>) -> Result<Opened> {
        let (early, bytes) = self.stop_early(request).unzip();
        let (repository, known) = match early {
            Some(Early { repository, elsewhere, .. }) => (repository, elsewhere),
            None => (self.open_image(&request.image, &request.access)?, None),
        };
        // A blob that is a layer too is read from the image's repository: no other may answer for its layers.
        let is_layer = |blob: Blob| record.layers.iter().any(|layer| layer.digest == blob.digest);
        let mut pack_repository = None;
        let mut source = repository.blobs();
        if let (Some(place), Some(blob)) = (
            boot_source(record, &request.image, &request.index_places),
            pack.map(|pack| pack.blob).filter(|blob| !is_layer(*blob)),
        ) {
            let opened = match known {
                Some((known, opened)) if known == place => Ok(opened),
                _ => self.open_place(place, &request.image, &request.access),
            };
            match opened {
                Ok(opened) => {
                    source = Arc::new(PackElsewhere { blob, pack: opened.blobs(), rest: source });
                    pack_repository = Some(opened);
                }
                // The image can be read without its pack.
                Err(error) => {
                    tracing::warn!(image = request.image, place, %error, "the place of its boot pack cannot be opened");
                }
            }
        }
        let source = bytes.flatten().map_or_else(|| source.clone(), |pack| pack.before(source.clone()));
        Ok(Opened { repository, pack_repository, source })
    }

    fn load_new(&self, request: &MountRequest) -> Result<LoadedImage> {
        let step = "load the image's record";
        let found = self.store.load_image(&request.manifest).context(ErrorKind::Store, step)?;
        let found = found.ok_or_else(|| {
            Error::new(ErrorKind::Store, step, self.what_is_wrong_with(&request.manifest)).hint(PREPARE_AGAIN)
        })?;
        let table = ChunkTable::open(Bytes::from_owner(found.chunks)).context(ErrorKind::Store, step)?;
        let pack = found.boot.as_deref().and_then(|boot| boot_index(&request.image, boot));
        let Opened { repository, pack_repository, source } = self.open(request, &found.record, pack.as_ref())?;
        let handle = self.fetcher.add_image(table, source, request.image.as_str());
        for layer in found.record.layers.iter().filter(|layer| layer.verification.is_refuted()) {
            handle.distrust(&layer.digest, "its index was found to be wrong");
        }
        let (pack, waiting_pack) = match pack.map(|pack| (pack_origin(&pack), pack)) {
            Some((PackOrigin::Predicted, pack)) => (Some(PackOrigin::Predicted), Some(pack)),
            Some((PackOrigin::Recorded, pack)) => (handle.replay(&pack).then_some(PackOrigin::Recorded), None),
            None => (None, None),
        };
        let file = found.tree.file().try_clone().context(ErrorKind::Store, step)?;
        let inode = file.metadata().ok().map(|metadata| metadata.ino());
        let tree = TreeFile { file: Arc::new(file), bytes: Bytes::from_owner(found.tree) };
        let key = ImageKey::new(&self.store.objects_folder(), handle.name(), request.manifest);
        let (earlier, stats, earlier_endpoints) = self.counters.take_image(&key);
        let endpoints = ImageEndpoints::new(repository.clone(), pack_repository.clone(), earlier_endpoints);
        let endpoints = Arc::new(endpoints);
        self.counters.endpoints.add(endpoints.clone());
        stats.iter().for_each(|stats| handle.continue_from(stats));
        Ok(LoadedImage {
            store: self.store.clone(),
            record: found.record,
            tree,
            repository,
            pack_repository,
            endpoints,
            handle,
            pack,
            waiting_pack: Mutex::new(waiting_pack),
            was_mounted: AtomicBool::new(false),
            earlier,
            tree_place: (found.tree_path, inode),
            prepared: PreparedBytes::default(),
            checked: Mutex::default(),
            checking: Mutex::default(),
            start: Mutex::default(),
        })
    }

    /// Why an image cannot be loaded.
    fn what_is_wrong_with(&self, manifest: &Digest) -> String {
        match self.store.image_state(manifest) {
            Ok(ImageState::Damaged { files, .. }) => format!("damaged in the store: {}", files.join(", ")),
            Ok(ImageState::Sound(_)) => {
                // The disk returns other bytes than when they were hashed, so the record is no longer trusted.
                if let Err(error) = self.store.remove_record(manifest) {
                    tracing::warn!(%error, "a damaged record stays");
                }
                "it was damaged in the store since it was checked".to_owned()
            }
            Ok(ImageState::Absent) => "it is not in the store".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

fn inode_at(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.ino())
}

/// The parts of an image's record that are mounted.
fn mounted_parts(record: &ImageRecord) -> impl Iterator<Item = &PartRecord> {
    record.parts.iter().filter(|part| part.part != Part::Forms)
}

/// The origin of a boot pack, by its profile.
pub(super) fn pack_origin(pack: &BootIndex) -> PackOrigin {
    if pack.profile == PREDICTED_PROFILE { PackOrigin::Predicted } else { PackOrigin::Recorded }
}

/// The index of the boot pack. An unreadable one is ignored.
pub(super) fn boot_index(image: &str, boot: &[u8]) -> Option<BootIndex> {
    match BootIndex::read(boot) {
        Ok(index) => Some(index),
        Err(error) => {
            tracing::warn!(image, %error, "its boot pack is not used");
            None
        }
    }
}

/// The place of the boot pack, if it is one that the user named: a worker wrote the record, and must not choose which hosts and files are
/// opened.
pub(super) fn boot_source<'a>(record: &'a ImageRecord, image: &str, index_places: &[String]) -> Option<&'a str> {
    let place = record.boot_source.as_deref()?;
    let is_named = index_places.iter().any(|named| named == place);
    if !is_named {
        tracing::info!(image, place, "the boot pack is not used: its place is no index repository of this mount");
    }
    is_named.then_some(place)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use rustix::fs::{FlockOperation, flock};
    use tarpon_images::sources::InProcess;
    use tarpon_images::{ImageRequest, Images, Prepared, Silent};
    use tarpon_registry::serve::Contents;
    use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
    use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, USER};
    use tarpon_testkit::server::TestServer;

    use super::*;

    /// Time limit for operations that wait for nothing, on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Downgrades the record to the first version, whose tree is rewritten when it is used.
    fn make_old(store: &Store, prepared: &Prepared) {
        let path = store.folder().join("images").join(prepared.manifest().hex()).join("record.json");
        let envelope: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut record = envelope["value"].clone();
        record["version"] = 1.into();
        let text = record.to_string();
        std::fs::write(path, format!(r#"{{"digest":"{}","value":{text}}}"#, Digest::of(text.as_bytes()))).unwrap();
    }

    /// A registry with an image for each tag.
    async fn registry(tags: &[&str], auth: Auth) -> TestServer {
        let mut contents = Contents::new();
        for tag in tags {
            let layer = estargz(&[Item::file("name", *tag)], EstargzOptions::default());
            let image = ImageBuilder::new().layer(layer).build();
            for (_, blob) in image.blobs() {
                contents.add_blob(blob);
            }
            contents.add_manifest(Some(("app", tag)), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
        }
        TestServer::start(Arc::new(FakeRegistry::new(contents, auth, None))).await.unwrap()
    }

    fn loaded_images(store: &Store) -> Arc<LoadedImages> {
        let fetcher = Fetcher::new(Arc::new(store.clone()), tokio::runtime::Handle::current(), Default::default());
        Arc::new(LoadedImages::new(store.clone(), fetcher, Arc::default(), Arc::new(InProcess)))
    }

    async fn prepare(images: &Images, server: &TestServer, tag: &str, creds: Option<&str>) -> Prepared {
        let text = format!("{}/app:{tag}", server.host());
        let request = ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap());
        let access = Access { creds: creds.map(str::to_owned), ..request.access.clone() };
        images.prepare(&ImageRequest { access, ..request }, &Silent).await.unwrap()
    }

    #[tokio::test]
    async fn renewed_credentials_are_used_by_the_mounts_of_an_image_and_those_of_another_image_stay() {
        let server = registry(&["one", "other"], Auth::Basic).await;
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("store")).unwrap();
        let good = format!("{USER}:{PASSWORD}");
        let (one, other) = (
            prepare(&images, &server, "one", Some(&good)).await,
            prepare(&images, &server, "other", Some(&good)).await,
        );
        let loaded = loaded_images(images.store());
        let with = |creds: &str| Access { creds: Some(creds.to_owned()), ..Access::default() };
        let load = |prepared: &Prepared, creds: &str| {
            let request = MountRequest::for_image(prepared, "/nowhere".into());
            loaded.load(&MountRequest { access: with(creds), ..request }).unwrap()
        };
        let read = async |image: &LoadedImage| {
            let layer = &image.record.layers[0];
            image.source().read(Blob { digest: layer.digest, size: layer.size }, 0..1).await.map(drop)
        };
        let (one_expired, other_expired) = (load(&one, "alice:expired"), load(&other, "alice:expired"));
        read(&one_expired).await.unwrap_err();
        loaded.renew_credentials(&one_expired, &with(&good)).unwrap();
        read(&one_expired).await.unwrap();
        read(&other_expired).await.unwrap_err();
        assert!(Arc::ptr_eq(&load(&one, &good), &one_expired), "a later mount uses the same image");
        let refused = load(&one, "alice:expired");
        assert!(!Arc::ptr_eq(&refused, &one_expired));
        read(&refused).await.unwrap_err();
        // Now both have the same credentials.
        loaded.renew_credentials(&refused, &with(&good)).unwrap();
        read(&refused).await.unwrap();
        assert!(Arc::ptr_eq(&load(&one, &good), &one_expired));
    }

    #[tokio::test]
    async fn what_is_ready_stays_so_if_the_pack_is_not_fetched_early() {
        let folder = tempfile::tempdir().unwrap();
        let images = loaded_images(Images::open(&folder.path().join("store")).unwrap().store());
        let name = |number: usize| format!("registry.test/app:{number}");
        let expect = |number| images.get_ready(name(number), Access::default(), 1, ()).unwrap().unwrap();
        let pack = PackPlace { blob: Blob { digest: Digest::of(b"pack"), size: 4 }, place: None };
        let prefetch = |number| images.prefetch_pack(name(number), Access::default(), pack.clone(), ()).unwrap();
        let is_ready = |number| images.ready.get(&name(number), &Access::default()).is_some();
        let _expected = expect(0);
        let _fetching: Vec<_> = (0..EARLY_PACKS).map(|number| prefetch(number).unwrap()).collect();
        assert!(!is_ready(0), "its pack is fetched with it");
        let (_known, _one_more) = (expect(0), expect(EARLY_PACKS));
        assert!(prefetch(0).is_none() && prefetch(EARLY_PACKS).is_none());
        assert!(is_ready(0) && is_ready(EARLY_PACKS), "the mount needs it");
    }

    #[tokio::test]
    async fn an_image_that_is_loaded_slowly_keeps_no_other_from_being_loaded() {
        let server = registry(&["old", "new"], Auth::Anonymous).await;
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("store")).unwrap();
        let (old, new) = (prepare(&images, &server, "old", None).await, prepare(&images, &server, "new", None).await);
        let store = images.store().clone();
        make_old(&store, &old);
        let images = loaded_images(&store);
        // An eviction that does not end.
        let lock = std::fs::File::create(store.run_folder().join("eviction.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let load = |prepared: &Prepared| {
            let (images, request) = (images.clone(), MountRequest::for_image(prepared, "/nowhere".into()));
            let (told, loaded) = mpsc::channel();
            thread::spawn(move || told.send(images.load(&request).map(|image| image.record.manifest)));
            loaded
        };
        let slow = load(&old);
        let is_loading = || images.turns.lock().values().filter_map(Weak::upgrade).any(|turn| turn.is_locked());
        while !is_loading() {
            thread::yield_now();
        }
        let first = load(&new).recv_timeout(PATIENCE).expect("it does not wait");
        assert_eq!(first.unwrap(), *new.manifest());
        assert_eq!(images.all().len(), 1);
        assert!(slow.try_recv().is_err(), "it waits for the lock");
        flock(&lock, FlockOperation::Unlock).unwrap();
        slow.recv_timeout(PATIENCE).expect("it goes on").unwrap_err();
    }
}

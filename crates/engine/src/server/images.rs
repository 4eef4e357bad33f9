//! The images whose objects this server can fetch.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_blob::BlobSource;
use tarpon_fetch::{BootIndex, Fetcher, ImageHandle, Stats};
use tarpon_layer::chunks::ChunkTable;
use tarpon_mount::TreeFile;
use tarpon_oci::{Blob, Digest};
use tarpon_registry::Repository;
use tarpon_store::{ImageRecord, ImageState, Part, PartRecord, Store};
use tarpon_trace::Trace;

use super::early::EarlyPack;
use super::hints;
use crate::protocol::{Access, MountRequest};
use crate::{Error, ErrorKind, Result, access};

/// An image that was loaded from its record and registered with the fetcher.
pub(super) struct Image {
    pub(super) record: ImageRecord,
    pub(super) tree: TreeFile,
    store: Store,
    repository: Repository,
    handle: ImageHandle,
    has_pack: bool,
    was_mounted: AtomicBool,
    /// Where its tree is, and the inode that was loaded.
    tree_place: (PathBuf, Option<u64>),
    /// When its local objects were last found to be sound.
    checked: Mutex<Option<Instant>>,
    checking: Mutex<()>,
}

/// Local objects of a mounted image are not looked at again for a mount that is made so soon after another one: of many containers
/// that start at once, one looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Image {
    /// Makes sure that the local objects are what their names say, before the kernel reads them by itself. What is damaged is moved
    /// out and fetched again when it is read. Looks at the metadata of each object; hashes all of them the first time after the machine was
    /// started, and those that changed since.
    pub(super) fn check_objects(&self) -> Result<()> {
        // Of those who come while it takes long, one hashes.
        let _checking = self.checking.lock();
        if self.checked.lock().is_some_and(|at| at.elapsed() < CHECK_INTERVAL) {
            return Ok(());
        }
        let failed = |cause: String| Error::new(ErrorKind::Store, "check the image's objects", cause);
        let found = self.store.check_image(&self.record.manifest, &|_| {});
        let found = found.map_err(|error| failed(error.to_string()))?;
        if !found.damaged_images.is_empty() {
            return Err(failed("the list of its objects is damaged".to_owned()).hint(PREPARE_AGAIN));
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

    /// Whether it is mounted for the first time: then all that crossed the wire for it counts for this mount.
    pub(super) fn is_first_mount(&self) -> bool {
        !self.was_mounted.swap(true, Ordering::Relaxed)
    }

    /// The record as it is now: since it was loaded, the image may have been pulled, which proves more of its layers.
    pub(super) fn record_now(&self) -> ImageRecord {
        let now = self.store.image(&self.record.manifest).ok().flatten();
        now.unwrap_or_else(|| self.record.clone())
    }

    /// Whether a boot pack brings parts of it.
    pub(super) fn has_pack(&self) -> bool {
        self.has_pack
    }

    /// As [`hints::follow`], unless it has a boot pack.
    pub(super) fn follow(&self, trace: Option<&Trace>) -> bool {
        !self.has_pack && hints::follow(&self.handle, &self.record.layers, trace)
    }

    /// Where its layers come from.
    pub(super) fn source(&self) -> Arc<dyn BlobSource> {
        self.repository.blobs()
    }

    pub(super) fn counters(&self) -> Stats {
        self.handle.stats()
    }

    /// Whether the registry answers requests for a part with the whole.
    pub(super) fn ignores_ranges(&self) -> bool {
        self.repository.ignores_ranges()
    }

    /// Its place among the fetcher's images.
    pub(super) fn handle(&self) -> &ImageHandle {
        &self.handle
    }

    /// As [`ImageHandle::contested_inode`].
    pub(super) fn contested_inode(&self) -> Option<Digest> {
        self.handle.contested_inode()
    }

    /// What crossed the wire for this image, retries and tokens included.
    pub(super) fn transfers(&self) -> tarpon_registry::Stats {
        self.repository.stats()
    }
}

/// What mends an image whose record is damaged.
const PREPARE_AGAIN: &str = "mount it again with `tarpon mount`: its record is made again then, from the registry";

/// Longest wait for another mount that loads the same image. Less than a client waits for its answer.
const LOAD_WAIT: Duration = Duration::from_secs(30);

/// Boot packs that are brought early at the same time.
const EARLY_PACKS: usize = 4;

/// The image to which a pack belongs that is on its way.
struct Early {
    image: String,
    access: Access,
    /// Connected, and with its tokens.
    repository: Repository,
    pack: Weak<EarlyPack>,
}

/// An image from one source: a second mount may name another registry or other credentials for the same manifest, and
/// must not depend on those of the first. The fetcher tries all sources of a manifest in turn.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    manifest: Digest,
    reference: String,
    access: Access,
}

/// Images stay registered as long as the server lives: somebody who uses a lazily unmounted tree still reads from it.
/// Each costs two mappings and a few hundred bytes.
pub(super) struct Images {
    store: Store,
    fetcher: Fetcher,
    loaded: Mutex<HashMap<Key, Arc<Image>>>,
    /// Those that are being loaded, which takes as long as the disk takes: no other lock is held meanwhile.
    turns: Mutex<HashMap<Key, Weak<Mutex<()>>>>,
    /// Boot packs that are on their way before their images are here.
    early: Mutex<Vec<Early>>,
    /// Those whose record was made anew, as long as somebody uses them.
    replaced: Mutex<Vec<Weak<Image>>>,
    /// By manifest: what no merged tree shows can be fetched as long as the server lives, as all else can.
    hidden: Mutex<HashMap<Digest, ImageHandle>>,
}

impl Images {
    pub(super) fn new(store: Store, fetcher: Fetcher) -> Self {
        let (loaded, turns, early, replaced, hidden) = Default::default();
        Self { store, fetcher, loaded, turns, early, replaced, hidden }
    }

    pub(super) fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// All that are loaded.
    pub(super) fn all(&self) -> Vec<Arc<Image>> {
        self.loaded.lock().values().cloned().collect()
    }

    /// Loads the image, or takes it as it was loaded for an earlier mount. One at a time loads it; others are loaded meanwhile.
    pub(super) fn load(&self, request: &MountRequest) -> Result<Arc<Image>> {
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

    /// Makes sure that what no merged tree of the image shows can be fetched as well: `table` says where it is.
    pub(super) fn show_hidden(&self, request: &MountRequest, image: &Image, table: Option<Bytes>) -> Result<()> {
        let mut hidden = self.hidden.lock();
        let Some(table) = table.filter(|_| !hidden.contains_key(&request.manifest)) else { return Ok(()) };
        let failed = |error| Error::new(ErrorKind::Store, "load the image's record", error);
        let table = ChunkTable::open(table).map_err(failed)?;
        hidden.insert(request.manifest, self.fetcher.add_image(table, image.source(), request.image.as_str()));
        Ok(())
    }

    /// Whether the image is what its record says, and the files that were loaded are those of the record: after an index turned out to
    /// lie, or a file to be damaged, the record is made anew.
    pub(super) fn is_current(&self, image: &Image) -> bool {
        let (path, inode) = &image.tree_place;
        match self.store.image_state(&image.record.manifest) {
            Ok(ImageState::Sound(now) | ImageState::Damaged { usable: Some(now), .. }) => {
                mounted_parts(&now).eq(mounted_parts(&image.record)) && inode_at(path) == *inode
            }
            // It was removed while somebody uses it, or cannot be looked at: what was loaded was sound.
            Ok(ImageState::Absent) | Err(_) => true,
            Ok(ImageState::Damaged { usable: None, .. }) => false,
        }
    }

    /// Takes nothing more out of the layer for this image, whatever source it has.
    pub(super) fn distrust(&self, manifest: &Digest, layer: &Digest, reason: &str) {
        for (_, image) in self.loaded.lock().iter().filter(|(key, _)| key.manifest == *manifest) {
            image.handle.distrust(layer, reason);
        }
        let replaced = self.replaced.lock();
        let used = replaced.iter().filter_map(Weak::upgrade);
        used.filter(|image| image.record.manifest == *manifest).for_each(|image| image.handle.distrust(layer, reason));
    }

    /// The next mount looks at the image's objects again: it is not mounted any more, and what happens to them is not seen.
    pub(super) fn forget_check(&self, manifest: &Digest) {
        for image in self.all().iter().filter(|image| image.record.manifest == *manifest) {
            *image.checked.lock() = None;
        }
    }

    /// Brings nothing more of what hints lead to, whatever source the image has.
    pub(super) fn stop_following(&self, manifest: &Digest) {
        let loaded = self.loaded.lock();
        let images: Vec<_> =
            loaded.iter().filter(|(key, _)| key.manifest == *manifest).map(|(_, image)| image.clone()).collect();
        drop(loaded);
        images.iter().for_each(|image| image.handle.stop_following());
    }

    /// Begins to bring the pack of an image that will be mounted in a moment: what is returned does, and holds `user` until it is.
    /// `None` if it is on its way already, or that many are.
    pub(super) fn bring<T>(
        &self,
        image: String,
        access: Access,
        pack: Blob,
        user: T,
    ) -> Result<Option<impl Future<Output = ()> + use<T>>> {
        let repository = access::open_later(&image, &access)?;
        let mut early = self.early.lock();
        early.retain(|early| early.pack.strong_count() > 0);
        let is_known = |early: &Early| early.image == image && early.access == access;
        if early.len() >= EARLY_PACKS || early.iter().any(is_known) {
            return Ok(None);
        }
        let (pack, source, fetcher) = (Arc::new(EarlyPack::new(pack)), repository.blobs(), self.fetcher.clone());
        early.push(Early { image, access, repository, pack: Arc::downgrade(&pack) });
        Ok(Some(async move {
            let give_way = || {
                let fetcher = fetcher.clone();
                async move { fetcher.give_way().await }
            };
            futures::join!(pack.bring(source, give_way), pack.forget_later(user));
        }))
    }

    /// Takes the pack of the image that is on its way, if one is, and lets no more of it be asked for.
    fn stop_early(&self, request: &MountRequest) -> Option<(Repository, Option<Arc<EarlyPack>>)> {
        let mut early = self.early.lock();
        let is_it = |early: &Early| early.image == request.image && early.access == request.access;
        let place = early.iter().position(is_it)?;
        let Early { repository, pack, .. } = early.swap_remove(place);
        let pack = pack.upgrade().inspect(|pack| pack.stop());
        Some((repository, pack))
    }

    /// The way to the image's blobs, and what is on it already.
    fn open(&self, request: &MountRequest) -> Result<(Repository, Arc<dyn BlobSource>)> {
        let Some((repository, pack)) = self.stop_early(request) else {
            let repository = access::open_later(&request.image, &request.access)?;
            let source = repository.blobs();
            return Ok((repository, source));
        };
        let blobs = repository.blobs();
        let source = pack.map_or_else(|| blobs.clone(), |pack| pack.before(blobs.clone()));
        Ok((repository, source))
    }

    fn load_new(&self, request: &MountRequest) -> Result<Image> {
        let failed = |cause: String| Error::new(ErrorKind::Store, "load the image's record", cause);
        let found = self.store.load_image(&request.manifest).map_err(|error| failed(error.to_string()))?;
        let found = found.ok_or_else(|| failed(self.what_is_wrong_with(&request.manifest)).hint(PREPARE_AGAIN))?;
        let table = ChunkTable::open(Bytes::from_owner(found.chunks)).map_err(|error| failed(error.to_string()))?;
        let (repository, source) = self.open(request)?;
        let handle = self.fetcher.add_image(table, source, request.image.as_str());
        for layer in found.record.layers.iter().filter(|layer| layer.verification.is_refuted()) {
            handle.distrust(&layer.digest, "what its index says was found to be wrong");
        }
        let has_pack = found.boot.is_some_and(|boot| replay(&handle, &boot));
        let file = found.tree.file().try_clone().map_err(|error| failed(error.to_string()))?;
        let inode = file.metadata().ok().map(|metadata| metadata.ino());
        let tree = TreeFile { file: Arc::new(file), bytes: Bytes::from_owner(found.tree) };
        Ok(Image {
            store: self.store.clone(),
            record: found.record,
            tree,
            repository,
            handle,
            has_pack,
            was_mounted: AtomicBool::new(false),
            tree_place: (found.tree_path, inode),
            checked: Mutex::default(),
            checking: Mutex::default(),
        })
    }

    /// Why an image cannot be loaded.
    fn what_is_wrong_with(&self, manifest: &Digest) -> String {
        match self.store.image_state(manifest) {
            Ok(ImageState::Damaged { files, .. }) => format!("damaged in the store: {}", files.join(", ")),
            Ok(ImageState::Sound(_)) => {
                // The disk gives other bytes than it gave when they were hashed. Nobody is to rely on that any more.
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

/// What of an image's record is mounted.
fn mounted_parts(record: &ImageRecord) -> impl Iterator<Item = &PartRecord> {
    record.parts.iter().filter(|part| part.part != Part::Forms)
}

/// Begins to bring what the boot pack holds. One that cannot be read is left alone.
fn replay(handle: &ImageHandle, boot: &[u8]) -> bool {
    match BootIndex::read(boot) {
        Ok(index) => handle.replay(&index),
        Err(error) => {
            tracing::warn!(image = handle.name(), %error, "its boot pack is not used");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use rustix::fs::{FlockOperation, flock};
    use tarpon_registry::serve::Contents;
    use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
    use tarpon_testkit::registry::{Auth, FakeRegistry};
    use tarpon_testkit::server::TestServer;

    use super::*;
    use crate::{Engine, EngineOptions, ImageRequest, Prepared, Silent};

    /// How long something may take that waits for nobody, on a machine that is busy elsewhere.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Makes the record one of the first version, whose tree is written anew when it is used.
    fn make_old(store: &Store, prepared: &Prepared) {
        let path = store.folder().join("images").join(prepared.manifest().hex()).join("record.json");
        let envelope: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut record = envelope["value"].clone();
        record["version"] = 1.into();
        let text = record.to_string();
        std::fs::write(path, format!(r#"{{"digest":"{}","value":{text}}}"#, Digest::of(text.as_bytes()))).unwrap();
    }

    #[tokio::test]
    async fn an_image_that_is_loaded_slowly_keeps_no_other_from_being_loaded() {
        let mut contents = Contents::new();
        for tag in ["old", "new"] {
            let layer = estargz(&[Item::file("name", tag)], EstargzOptions::default());
            let image = ImageBuilder::new().layer(layer).build();
            for (_, blob) in image.blobs() {
                contents.add_blob(blob);
            }
            contents.add_manifest(Some(("app", tag)), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
        }
        let server = TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions { store: folder.path().join("store"), server_command: Vec::new() };
        let engine = Engine::open(options).unwrap();
        let prepare = async |tag| {
            let text = format!("{}/app:{tag}", server.host());
            let request = ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap());
            engine.prepare(&request, &Silent).await.unwrap()
        };
        let (old, new) = (prepare("old").await, prepare("new").await);
        let store = engine.store().clone();
        make_old(&store, &old);
        let fetcher = Fetcher::new(Arc::new(store.clone()), tokio::runtime::Handle::current(), Default::default());
        let images = Arc::new(Images::new(store.clone(), fetcher));
        // Somebody evicts, and does not come to an end.
        let lock = std::fs::File::create(store.run_folder().join("eviction.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let load = |prepared: &Prepared| {
            let (images, request) = (images.clone(), prepared.mount_on("/nowhere".into()));
            let (told, loaded) = mpsc::channel();
            thread::spawn(move || told.send(images.load(&request).map(|image| image.record.manifest)));
            loaded
        };
        let slow = load(&old);
        let is_loading = || images.turns.lock().values().filter_map(Weak::upgrade).any(|turn| turn.is_locked());
        while !is_loading() {
            thread::yield_now();
        }
        let first = load(&new).recv_timeout(PATIENCE).expect("it waits for nobody");
        assert_eq!(first.unwrap(), *new.manifest());
        assert_eq!(images.all().len(), 1);
        assert!(slow.try_recv().is_err(), "it waits for the lock");
        flock(&lock, FlockOperation::Unlock).unwrap();
        slow.recv_timeout(PATIENCE).expect("it goes on").unwrap_err();
    }
}

//! [`LayerStore`]: the images of which Podman pulls layers lazily, in one mount on the store's `podman-layers` folder.
//!
//! ```text
//! podman pull ─► stat …/diff ─► find: a process prepares the image ─► show: record, layers ─► get
//!                …/use, rmdir ─► count: record
//! ```
//!
//! The mount has a record among those of mounts, and so has each image: by its name and manifest, with the number of uses of each layer by
//! Podman. The record protects the image from eviction and lets the next server show it again, because Podman reports each use only once.
//! An image without uses is removed when Podman reports the last one as released, or after some time without any.

mod find;
mod spool;
mod status;
mod uses;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{Backfill, DiffIds, LayersPart, MountRequest, MountStatus};
use tarpon_fs::{Errno, LayerKey, LayerStoreFs, Layers, ShownLayer, Use};
use tarpon_images::Access;
use tarpon_mount::Mounted;
use tarpon_oci::{Blob, Digest, Reference};
use tarpon_server::{Exhibit, ExhibitHost, LoadedImage, cannot_mount};
use tarpon_store::Store;

use self::find::Finding;
use self::spool::Spools;
use super::clock::now;
use super::guard::Guard;
use super::offered::Offered;
use super::place::make_empty;
use crate::{Error, ErrorKind, Result};

/// How long an image without uses is shown: a pull reports them after it has found all layers.
const UNUSED: Duration = Duration::from_secs(600);

/// The store of layers.
pub(super) struct LayerStore {
    me: Weak<Self>,
    host: ExhibitHost,
    store: Store,
    folder: PathBuf,
    /// Held during a change of the state and its record.
    changing: Mutex<()>,
    /// Held only for moments, because the kernel waits for replies.
    state: RwLock<State>,
    finding: Finding,
    spools: Spools,
}

#[derive(Default)]
struct State {
    /// The record of the mount. `None`: it is not wanted.
    settings: Option<MountRequest>,
    shown: Option<Shown>,
    /// The newest last.
    images: Vec<Entry>,
    /// By manifest. An image that is shown again offers the same layers, which live as long as the mount.
    offered: HashMap<Digest, Arc<Offered>>,
    /// Manifests of removed images.
    released: Vec<Digest>,
}

struct Shown {
    mounted: Mounted,
    _guard: Option<Guard>,
}

struct Entry {
    reference: Reference,
    request: MountRequest,
    image: Arc<LoadedImage>,
    offered: Arc<Offered>,
    /// When Podman last found a layer of it.
    asked: Mutex<Instant>,
}

impl LayerStore {
    pub(super) fn new(host: ExhibitHost) -> Arc<Self> {
        let store = host.store().clone();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            folder: store.podman_layers_folder(),
            spools: Spools::new(store.run_folder(), host.runtime().clone()),
            host,
            store,
            changing: Mutex::default(),
            state: RwLock::default(),
            finding: Finding::default(),
        })
    }

    /// Mounts it, unless it is mounted. The settings of this request take effect from now on.
    fn start(&self, mut request: MountRequest) -> Result<()> {
        let _changing = self.changing.lock();
        request.mountpoint.clone_from(&self.folder);
        // Credentials are for one registry, but Podman may name any.
        request.access.creds = None;
        let failed = |error| Error::new(ErrorKind::Store, "record the mount", error);
        SavedMount::new(&request).write(&self.store).map_err(failed)?;
        let mut state = self.state.write();
        let is_same = state.settings.as_ref().is_some_and(|before| before.layers == request.layers);
        let is_mounted = state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached());
        let before = state.settings.replace(request);
        if is_same && is_mounted {
            return Ok(());
        }
        let old = state.shown.take();
        drop(state);
        // The kernel caches layer descriptions, which differ in another mount.
        drop(old);
        match self.attach() {
            Ok(shown) => self.state.write().shown = Some(shown),
            Err(error) => {
                // The previous settings are still wanted.
                match &before {
                    Some(before) => self.note(before),
                    None => self.forget(&self.folder),
                }
                let was_shown = before.is_some();
                self.state.write().settings = before;
                if was_shown {
                    self.attach_again();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Mounts again after a failure, so that Podman's images keep running if possible.
    fn attach_again(&self) {
        match self.attach() {
            Ok(shown) => self.state.write().shown = Some(shown),
            Err(error) => tracing::error!(%error, "layers are not shown to Podman any more: run `tarpon recover`"),
        }
    }

    fn attach(&self) -> Result<Shown> {
        tarpon_mount::clear_dead(&self.folder).map_err(cannot_mount)?;
        make_empty(&self.folder)
            .map_err(|error| Error::new(ErrorKind::Store, "make a directory for Podman's layers", error))?;
        let files = LayerStoreFs::new(Arc::new(Door(self.me.clone())), now());
        let mounted = self.host.mount_files(Arc::new(files), &self.folder).map_err(|error| {
            cannot_mount(error).hint("layers are shown to Podman by root, with /dev/fuse; `tarpon doctor` says more")
        })?;
        let guard = Guard::start(self.host.server_command(), &self.folder);
        if let Err(error) = &guard {
            tracing::warn!(%error, "nobody will unmount Podman's store of layers if this server is killed");
        }
        Ok(Shown { mounted, _guard: guard.ok().flatten() })
    }

    /// Unmounts it and removes all of its records.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if Podman has images with layers in it, unless `force` is set.
    fn stop(&self, mountpoint: &Path, force: bool) -> Result<()> {
        let _changing = self.changing.lock();
        if mountpoint != self.folder {
            let cause = "Podman has it: it goes when Podman lets go of it";
            return Err(Error::new(ErrorKind::CannotMount, "remove the image", cause).hint("podman rmi"));
        }
        if !force {
            self.refuse_if_used()?;
        }
        let mut state = self.state.write();
        let State { shown, images, .. } = std::mem::take(&mut *state);
        state.released.extend(images.iter().map(|entry| entry.request.manifest));
        drop(state);
        images.iter().for_each(|entry| self.forget(&entry.request.mountpoint));
        self.forget(&self.folder);
        drop(shown);
        Ok(())
    }

    /// Shows the layers of an image whose record is in the store.
    fn show(&self, mut request: MountRequest) -> Result<()> {
        let reference: Reference =
            request.image.parse().map_err(|error| Error::new(ErrorKind::NotFound, "read the image's name", error))?;
        let _changing = self.changing.lock();
        request.mountpoint = self.place(&reference, &request.manifest);
        let is_it = |entry: &Entry| entry.request.mountpoint == request.mountpoint;
        if self.state.read().images.iter().any(is_it) {
            return Ok(());
        }
        let image = self.host.load(&request)?;
        let known = self.state.read().offered.get(&request.manifest).cloned();
        let offered = match known {
            Some(known) => known,
            None => Arc::new(Offered::load(&self.store, &request.manifest)?),
        };
        self.host.show_hidden(&request, &image, offered.hidden.clone())?;
        let failed = |error| Error::new(ErrorKind::Store, "record the image", error);
        SavedMount::new(&request).write(&self.store).map_err(failed)?;
        if let Err(error) = self.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        self.host.begin_backfill(&request, &image);
        image.follow(None);
        let mut state = self.state.write();
        state.offered.insert(request.manifest, offered.clone());
        state.images.push(Entry { reference, request, image, offered, asked: Mutex::new(Instant::now()) });
        Ok(())
    }

    /// The path of an image in mount lists and in its record.
    fn place(&self, reference: &Reference, manifest: &Digest) -> PathBuf {
        self.folder.join(BASE64_STANDARD.encode(reference.to_string())).join(manifest.to_string())
    }

    fn note(&self, request: &MountRequest) {
        if let Err(error) = SavedMount::new(request).write(&self.store) {
            tracing::warn!(image = request.image, %error, "how often Podman uses its layers is not noted");
        }
    }

    fn forget(&self, mountpoint: &Path) {
        if let Err(error) = self.store.forget_mount(mountpoint) {
            tracing::warn!(%error, "a record of Podman's layers stays behind");
        }
    }

    /// How to access registries, and which diffIDs Podman gets. `None`: nothing is shown.
    fn settings(&self) -> Option<(Access, DiffIds)> {
        let state = self.state.read();
        let settings = state.settings.as_ref()?;
        let diff_ids = match settings.layers {
            Some(LayersPart::Store { diff_ids }) => diff_ids,
            _ => DiffIds::default(),
        };
        Some((settings.access.clone(), diff_ids))
    }

    /// Looks up a layer: in the newest image of this name that has it.
    fn with<T>(&self, key: &LayerKey, answer: impl FnOnce(&Entry) -> Option<T>) -> Option<T> {
        let state = self.state.read();
        let mut entries = state.images.iter().rev();
        let entry = entries.find(|entry| entry.reference == key.image && entry.offered.find(&key.digest).is_some())?;
        // A lookup may precede a use.
        *entry.asked.lock() = Instant::now();
        answer(entry)
    }
}

impl Exhibit for LayerStore {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn accepts(&self, request: &MountRequest) -> bool {
        request.layers.is_some()
    }

    fn shows(&self, manifest: &Digest) -> bool {
        self.state.read().images.iter().any(|entry| entry.request.manifest == *manifest)
    }

    fn image(&self, mountpoint: &Path) -> Option<Arc<LoadedImage>> {
        let state = self.state.read();
        let entry = state.images.iter().find(|entry| entry.request.mountpoint == mountpoint)?;
        Some(entry.image.clone())
    }

    fn mount(&self, request: MountRequest) -> Result<()> {
        match request.layers {
            Some(LayersPart::Image { .. }) => self.show(request),
            _ => self.start(request),
        }
    }

    fn unmount(&self, mountpoint: &Path, _name: Option<&str>, force: bool) -> Result<Option<Vec<Digest>>> {
        self.stop(mountpoint, force)?;
        Ok(Some(self.tidy()))
    }

    fn refuse_if_used(&self) -> Result<()> {
        let state = self.state.read();
        let Some(used) = state.images.iter().find(|entry| entry.uses() > 0) else { return Ok(()) };
        let cause = format!("Podman has images that cannot run without it: {}", used.request.image);
        Err(Error::new(ErrorKind::CannotMount, "unmount Podman's layers", cause)
            .hint("remove them first (podman rmi), or use --force"))
    }

    fn status(&self) -> Vec<MountStatus> {
        self.describe()
    }

    fn tidy(&self) -> Vec<Digest> {
        self.spools.tidy();
        let _changing = self.changing.lock();
        let mut state = self.state.write();
        let is_unused = |entry: &mut Entry| entry.uses() == 0 && entry.asked.lock().elapsed() > UNUSED;
        let unused: Vec<Entry> = state.images.extract_if(.., is_unused).collect();
        let mut released = std::mem::take(&mut state.released);
        drop(state);
        for entry in &unused {
            // It may be pulled again at once.
            self.finding.forget(&entry.reference);
            self.forget(&entry.request.mountpoint);
        }
        released.extend(unused.iter().map(|entry| entry.request.manifest));
        released
    }

    fn count(&self) -> (&'static str, u64) {
        (status::MODE, self.state.read().images.len() as u64)
    }
}

impl Layers for LayerStore {
    fn get(&self, key: &LayerKey) -> Option<ShownLayer> {
        let (_, diff_ids) = self.settings()?;
        self.with(key, |entry| {
            let layer = entry.offered.find(&key.digest)?;
            let info = layer.info(&key.digest, diff_ids);
            Some(ShownLayer { diff: layer.diff.clone(), info, blob_size: layer.form.blob_size })
        })
    }

    fn find(&self, key: &LayerKey) -> BoxFuture<'static, ()> {
        match self.me.upgrade() {
            Some(me) => me.look_for(key.clone()).boxed(),
            None => futures::future::ready(()).boxed(),
        }
    }

    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()> {
        match self.me.upgrade() {
            Some(me) => me.note_use(key.clone(), change).boxed(),
            None => futures::future::ready(()).boxed(),
        }
    }

    fn blob(&self, key: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, std::result::Result<Bytes, Errno>> {
        let found = self.with(key, |entry| {
            let form = &entry.offered.find(&key.digest)?.form;
            Some((Blob { digest: form.blob, size: form.blob_size }, entry.image.source()))
        });
        match found {
            Some((blob, source)) => self.spools.read(blob, source, offset, length).boxed(),
            None => futures::future::ready(Err(Errno::Stale)).boxed(),
        }
    }
}

/// The mount's reference to the store, weak because the store owns the mount.
struct Door(Weak<LayerStore>);

impl Layers for Door {
    fn get(&self, key: &LayerKey) -> Option<ShownLayer> {
        self.0.upgrade()?.get(key)
    }

    fn find(&self, key: &LayerKey) -> BoxFuture<'static, ()> {
        self.0.upgrade().map_or_else(|| futures::future::ready(()).boxed(), |layers| layers.find(key))
    }

    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()> {
        self.0.upgrade().map_or_else(|| futures::future::ready(()).boxed(), |shelf| shelf.used(key, change))
    }

    fn blob(&self, key: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, std::result::Result<Bytes, Errno>> {
        let gone = || futures::future::ready(Err(Errno::Io)).boxed();
        self.0.upgrade().map_or_else(gone, |shelf| shelf.blob(key, offset, length))
    }
}

/// The backfill of an image, depending on whether Podman relies on its diffIDs.
fn backfill(diff_ids: DiffIds) -> Backfill {
    match diff_ids {
        DiffIds::Hashed => Backfill::Off,
        // So that a wrong diffID is detected.
        DiffIds::Claimed => Backfill::Idle,
    }
}

#[cfg(test)]
mod tests;

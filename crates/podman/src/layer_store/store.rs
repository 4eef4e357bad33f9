//! [`LayerStore`]: its mount, its images and their records.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::{Mutex, RwLock};
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{DiffIds, LayersPart, MountRequest};
use tarpon_images::{Access, PolicyChoice};
use tarpon_mount::Mounted;
use tarpon_oci::{Digest, Reference};
use tarpon_server::{Exhibit, ExhibitHost, cannot_mount};
use tarpon_store::Store;

use super::entry::Entry;
use super::finding::Finding;
use super::spool::Spools;
use crate::clock::now;
use crate::layer_store_fs::{LayerKey, LayerStoreFs};
use crate::offered::Offered;
use crate::place::make_empty;
use crate::saved_state::RestoreError;
use crate::take_over::{KeptState, take_over};
use crate::{Error, ErrorKind, Result, ResultExt};

/// The name of the state that outlives the server.
const STATE: &str = "podman-layers";

/// The store of layers.
pub(crate) struct LayerStore {
    pub(super) me: Weak<Self>,
    pub(super) host: ExhibitHost,
    pub(super) store: Store,
    pub(super) folder: PathBuf,
    /// Held during a change of the state and its record.
    pub(super) changing: Mutex<()>,
    /// Held only for moments, because the kernel waits for replies.
    pub(super) state: RwLock<State>,
    pub(super) finding: Finding,
    pub(super) spools: Spools,
    kept: Arc<KeptState>,
}

#[derive(Default)]
pub(super) struct State {
    /// The record of the mount. `None`: it is not wanted.
    pub(super) settings: Option<MountRequest>,
    pub(super) shown: Option<Shown>,
    /// The newest last.
    pub(super) images: Vec<Entry>,
    /// By manifest. An image that is shown again offers the same layers, which live as long as the mount.
    pub(super) offered: HashMap<Digest, Arc<Offered>>,
    /// Manifests of removed images.
    pub(super) released: Vec<Digest>,
}

pub(super) struct Shown {
    pub(super) mounted: Mounted,
}

/// The mount's reference to the store, weak because the store owns the mount.
pub(super) struct Door(pub(super) Weak<LayerStore>);

fn diff_ids(settings: &MountRequest) -> DiffIds {
    match settings.layers {
        Some(LayersPart::Store { diff_ids, .. }) => diff_ids,
        _ => DiffIds::default(),
    }
}

/// The policy, which the request's own access has lost on its way here.
fn policy(settings: &MountRequest) -> PolicyChoice {
    match &settings.layers {
        Some(LayersPart::Store { policy: Some(file), .. }) => PolicyChoice::File(file.clone()),
        _ => PolicyChoice::Host,
    }
}

impl LayerStore {
    pub(crate) fn new(host: ExhibitHost) -> Arc<Self> {
        let store = host.store().clone();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            folder: store.podman_layers_folder(),
            spools: Spools::new(store.run_folder(), host.runtime().clone()),
            kept: KeptState::new(host.clone(), STATE),
            host,
            store,
            changing: Mutex::default(),
            state: RwLock::default(),
            finding: Finding::default(),
        })
    }

    /// Mounts it, unless it is mounted. The settings of this request take effect from now on.
    pub(super) fn start(&self, request: MountRequest) -> Result<()> {
        self.start_by(request, Self::attach)
    }

    /// As [`Self::start`], with the mount of a dead server if that can be taken over. Its images are shown already.
    pub(super) fn resume(&self, request: MountRequest) -> Result<()> {
        self.start_by(request, |store| match store.take_over() {
            Some(shown) => Ok(shown),
            None => store.attach(),
        })
    }

    fn start_by(&self, mut request: MountRequest, attach: impl FnOnce(&Self) -> Result<Shown>) -> Result<()> {
        let _changing = self.changing.lock();
        request.mountpoint.clone_from(&self.folder);
        // Credentials are for one registry, but Podman may name any.
        request.access.creds = None;
        SavedMount::new(&request).write(&self.store).context(ErrorKind::Store, "record the mount")?;
        let mut state = self.state.write();
        // The mount shows the diffIDs. Everything else matters to the next image only.
        let is_same = state.settings.as_ref().is_some_and(|before| diff_ids(before) == diff_ids(&request));
        let is_mounted = state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached());
        let before = state.settings.replace(request);
        if is_same && is_mounted {
            return Ok(());
        }
        let old = state.shown.take();
        drop(state);
        // The kernel caches layer descriptions, which differ in another mount.
        drop(old);
        match attach(self) {
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
        make_empty(&self.folder).context(ErrorKind::Store, "make a directory for Podman's layers")?;
        let files = LayerStoreFs::new(Arc::new(Door(self.me.clone())), now(), self.kept.save());
        let mounted = self.host.mount_files(Arc::new(files), &self.folder).map_err(|error| {
            cannot_mount(error).hint("layers are shown to Podman by root, with /dev/fuse; `tarpon doctor` shows more")
        })?;
        Ok(Shown { mounted })
    }

    /// Continues the mount of the dead server, if there is one.
    fn take_over(&self) -> Option<Shown> {
        let door = Arc::new(Door(self.me.clone()));
        let restored = LayerStoreFs::restored(&self.kept.inherited(), door, self.kept.save());
        let (_, mounted) = take_over(&self.folder, restored, |files| self.host.adopt_files(files, &self.folder))?;
        Some(Shown { mounted })
    }

    /// Removes the mount of a dead server if there is no record of it.
    pub(super) fn give_up_unwanted(&self) {
        if self.state.read().settings.is_none() {
            let restored = Err::<LayerStoreFs, _>(RestoreError::Unwanted);
            let _none = take_over(&self.folder, restored, |files| self.host.adopt_files(files, &self.folder));
        }
    }

    /// Unmounts it and removes all of its records.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if Podman has images with layers in it, unless `force` is set.
    pub(super) fn stop(&self, mountpoint: &Path, force: bool) -> Result<()> {
        let _changing = self.changing.lock();
        if mountpoint != self.folder {
            let cause = "Podman has it: it is removed when Podman releases it";
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
        self.kept.clear();
        Ok(())
    }

    /// Shows the layers of an image whose record is in the store.
    pub(super) fn show(&self, mut request: MountRequest) -> Result<()> {
        let reference: Reference = request.image.parse().context(ErrorKind::NotFound, "read the image's name")?;
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
        SavedMount::new(&request).write(&self.store).context(ErrorKind::Store, "record the image")?;
        if let Err(error) = self.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        self.host.begin_backfill(&request, &image);
        image.begin_start(&[], true)();
        let mut state = self.state.write();
        state.offered.insert(request.manifest, offered.clone());
        state.images.push(Entry { reference, request, image, offered, asked: Mutex::new(Instant::now()) });
        Ok(())
    }

    /// The path of an image in mount lists and in its record.
    pub(super) fn place(&self, reference: &Reference, manifest: &Digest) -> PathBuf {
        self.folder.join(BASE64_STANDARD.encode(reference.to_string())).join(manifest.to_string())
    }

    pub(super) fn note(&self, request: &MountRequest) {
        if let Err(error) = SavedMount::new(request).write(&self.store) {
            tracing::warn!(image = request.image, %error, "how often Podman uses its layers is not noted");
        }
    }

    pub(super) fn forget(&self, mountpoint: &Path) {
        if let Err(error) = self.store.forget_mount(mountpoint) {
            tracing::warn!(%error, "a record of Podman's layers stays behind");
        }
    }

    /// How to access registries, with the policy, and which diffIDs Podman gets. `None`: nothing is shown.
    pub(super) fn settings(&self) -> Option<(Access, DiffIds)> {
        let state = self.state.read();
        let settings = state.settings.as_ref()?;
        let policy = policy(settings);
        Some((Access { policy, ..settings.access.clone() }, diff_ids(settings)))
    }

    /// Looks up a layer: in the newest image of this name that has it.
    pub(super) fn with<T>(&self, key: &LayerKey, answer: impl FnOnce(&Entry) -> Option<T>) -> Option<T> {
        let state = self.state.read();
        let mut entries = state.images.iter().rev();
        let entry = entries.find(|entry| entry.reference == key.image && entry.offered.find(&key.digest).is_some())?;
        // A lookup may precede a use.
        *entry.asked.lock() = Instant::now();
        answer(entry)
    }
}

//! [`PodmanImageStore`]: its mount, its images and their records.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::MountRequest;
use tarpon_mount::Mounted;
use tarpon_oci::Digest;
use tarpon_server::{ExhibitHost, LoadedImage, cannot_mount};
use tarpon_store::Store;

use super::entry::{Entry, Images};
use super::names::{give_back, settle_names};
use crate::clock::now;
use crate::listed::Listed;
use crate::place::image_folder;
use crate::store_fs::{Directory, StoreFs};
use crate::take_over::KeptState;
use crate::view::View;
use crate::{Error, ErrorKind, Result, ResultExt};
use crate::{in_use, place, view};

/// The name of the state that outlives the server.
const STATE: &str = "podman";

/// The store of images in the format of Podman.
pub(crate) struct PodmanImageStore {
    pub(super) host: ExhibitHost,
    pub(super) store: Store,
    pub(super) folder: PathBuf,
    pub(super) kept: Arc<KeptState>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The shown images.
    pub(super) images: Images,
    /// Removed images, whose layers are still listed.
    pub(super) retired: Vec<(Instant, Entry)>,
    pub(super) shown: Option<Shown>,
    changes: u64,
}

pub(super) struct Shown {
    pub(super) files: Arc<StoreFs>,
    pub(super) mounted: Mounted,
}

impl PodmanImageStore {
    pub(crate) fn new(host: ExhibitHost) -> Self {
        let store = host.store().clone();
        let folder = store.podman_folder();
        let kept = KeptState::new(host.clone(), STATE);
        Self { host, store, folder, kept, state: Mutex::default() }
    }

    /// Shows an image, and mounts if nothing is shown yet.
    pub(super) fn add(&self, request: &MountRequest) -> Result<Arc<LoadedImage>> {
        let entry = self.load(request)?;
        let (id, image) = (entry.listed.id(), entry.image.clone());
        let mut state = self.state.lock();
        // Names are moved and entries replaced only once it is certain that this image can be shown.
        self.attach(&mut state)?;
        if let Err(error) = self.enter(&mut state, entry) {
            self.unmount_if_empty(&mut state);
            return Err(error);
        }
        stop_read_ahead(&state);
        // Layers first.
        self.publish(&mut state, Some(id));
        drop(state);
        image.begin_start(&[], true)();
        Ok(image)
    }

    /// Loads an image from its record.
    pub(super) fn load(&self, request: &MountRequest) -> Result<Entry> {
        let image = self.host.load(request)?;
        let listed = Listed::load(&self.store, &request.manifest, image.tree())?;
        self.host.show_hidden(request, &image, listed.hidden.clone())?;
        let mountpoint = image_folder(&self.folder, &listed.id());
        Ok(Entry { request: MountRequest { mountpoint, ..request.clone() }, image, listed })
    }

    /// Records an image and adds it to those that are shown.
    pub(super) fn enter(&self, state: &mut State, mut entry: Entry) -> Result<()> {
        let id = entry.listed.id();
        let poorer = settle_names(&mut state.images, id, &mut entry.request);
        if let Err(error) = SavedMount::new(&entry.request).write(&self.store) {
            give_back(&mut state.images, poorer);
            return Err(Error::new(ErrorKind::Store, "record the image", error));
        }
        poorer.keys().filter_map(|other| state.images.get(other)).for_each(|other| self.note(&other.request));
        // A replaced entry has the same id but other layers.
        let before = state.images.insert(id, entry);
        state.retired.extend(before.map(|before| (Instant::now(), before)));
        Ok(())
    }

    fn note(&self, request: &MountRequest) {
        if let Err(error) = SavedMount::new(request).write(&self.store) {
            tracing::warn!(%error, "the names of an image are not noted");
        }
    }

    fn forget(&self, mountpoint: &Path) {
        if let Err(error) = self.store.forget_mount(mountpoint) {
            tracing::warn!(%error, "the record of an image stays behind");
        }
    }

    /// Stops showing an image, or removes only the name if it has others. `None` if it is not shown; else the manifests that are no longer
    /// shown.
    pub(super) fn remove(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<Option<Vec<Digest>>> {
        let mut state = self.state.lock();
        let id = mountpoint.file_name().and_then(|id| Digest::from_hex(id.to_str()?).ok());
        let Some(entry) = id.and_then(|id| state.images.get_mut(&id)) else { return Ok(None) };
        if let Some(podman) = entry.request.podman.as_mut().filter(|podman| podman.names.len() > 1)
            && let Some(name) = name
        {
            podman.names.retain(|other| other != name);
            let request = entry.request.clone();
            self.note(&request);
            self.publish(&mut state, None);
            return Ok(Some(Vec::new()));
        }
        let id = entry.listed.id();
        if !force && let Some(entry) = state.images.get(&id) {
            let others = state.images.iter().filter(|(other, _)| **other != id).map(|(_, other)| &other.listed);
            self.refuse_removal(&entry.listed, others)?;
        }
        let Some(entry) = state.images.remove(&id) else { return Ok(None) };
        let manifest = entry.request.manifest;
        self.forget(&entry.request.mountpoint);
        state.retired.push((Instant::now(), entry));
        self.publish(&mut state, None);
        self.unmount_if_empty(&mut state);
        Ok(Some(vec![manifest]))
    }

    pub(super) fn unmount_if_empty(&self, state: &mut State) {
        if state.images.is_empty() {
            state.retired.clear();
            // Dropping it unmounts it; lazily if a container uses it.
            state.shown = None;
            self.kept.clear();
        }
    }

    /// Layers shared with `others` stay in any case.
    pub(super) fn refuse_removal<'a>(
        &self,
        listed: &Listed,
        others: impl Iterator<Item = &'a Listed> + Clone,
    ) -> Result<()> {
        let store = self.folder.to_string_lossy();
        match in_use::mounted(&view::own_links(&store, listed, others)) {
            None => Ok(()),
            Some(link) => {
                let cause = format!("a container uses it: its root is an overlay with the layer {link}");
                Err(Error::new(ErrorKind::CannotMount, "unmount its layers", cause)
                    .hint("remove the container first (podman ps --all --storage), or use --force"))
            }
        }
    }

    /// Mounts the store, unless it is mounted.
    pub(super) fn attach(&self, state: &mut State) -> Result<()> {
        if state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached()) {
            return Ok(());
        }
        state.shown = None;
        tarpon_mount::clear_dead(&self.folder).map_err(cannot_mount)?;
        place::make(&self.folder).context(ErrorKind::Store, "make a directory for Podman's store")?;
        let root = self.view(state, |_| true);
        let files = Arc::new(StoreFs::new(root, now(), self.kept.save()));
        let mounted = self.host.mount_files(files.clone(), &self.folder).map_err(|error| {
            cannot_mount(error).hint("images are shown to Podman by root, with /dev/fuse; `tarpon doctor` shows more")
        })?;
        state.shown = Some(Shown { files, mounted });
        Ok(())
    }

    /// Updates the mount, if there is one. `new`: an image whose layers are shown before the image.
    pub(super) fn publish(&self, state: &mut State, new: Option<Digest>) {
        let Some(files) = state.shown.as_ref().map(|shown| shown.files.clone()) else { return };
        if let Some(new) = new {
            files.set(self.view(state, |id| *id != new), now());
        }
        files.set(self.view(state, |_| true), now());
    }

    pub(super) fn view(&self, state: &mut State, is_listed: impl Fn(&Digest) -> bool) -> Directory {
        state.changes += 1;
        let change = format!("{} {:?} {}", std::process::id(), now(), state.changes);
        let store = self.folder.to_string_lossy();
        let mut images: Vec<&Entry> = state.images.values().collect();
        images.sort_by_key(|entry| entry.added());
        let mut view = View::new(images.iter().map(|entry| &entry.listed));
        let retired = state.retired.iter().map(|(_, entry)| entry);
        images.iter().copied().chain(retired).for_each(|entry| view.add_layers(&store, &entry.listed));
        for entry in images.iter().filter(|entry| is_listed(&entry.listed.id())) {
            view.add_image(&entry.listed, entry.names());
        }
        view.finish(&change)
    }
}

/// As for other mounts with a boot pack: the kernel would read ahead what the pack omits, and each such read fetches a span.
pub(super) fn stop_read_ahead(state: &State) {
    if let Some(shown) = &state.shown
        && state.images.values().any(|entry| entry.image.has_pack())
    {
        shown.mounted.stop_read_ahead();
    }
}

//! [`PodmanImageStore`]: the images shown to Podman, in one mount on the store's `podman` folder.
//!
//! It is mounted with the first image and unmounted with the last one. Each image has a record among those of mounts, which protects it
//! from eviction and restores it after a restart. Adding an image shows its layers before the image, and removing an image keeps its layers
//! for a while, because Podman reads the two lists one after the other.

use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{MountRequest, MountStatus, PodmanImage};
use tarpon_mount::Mounted;
use tarpon_oci::Digest;
use tarpon_server::{Exhibit, ExhibitHost, LoadedImage, cannot_mount, exposed};
use tarpon_store::Store;

use super::clock::now;
use super::guard::Guard;
use super::listed::Listed;
use super::place::image_folder;
use super::view::View;
use super::{in_use, place, view};
use crate::store_fs::{Directory, StoreFs};
use crate::{Error, ErrorKind, Result, ResultExt};

/// The name of these mounts as a mode.
const MODE: &str = "podman";

/// How long the layers of a removed image stay: longer than a Podman command takes from one list to the other.
const RETIREMENT: Duration = Duration::from_secs(20);

/// The store of images in the format of Podman.
pub(super) struct PodmanImageStore {
    host: ExhibitHost,
    store: Store,
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The shown images, by id.
    images: BTreeMap<Digest, Entry>,
    /// Removed images, whose layers are still listed.
    retired: Vec<(Instant, Entry)>,
    shown: Option<Shown>,
    changes: u64,
}

struct Entry {
    request: MountRequest,
    image: Arc<LoadedImage>,
    listed: Listed,
}

struct Shown {
    files: Arc<StoreFs>,
    mounted: Mounted,
    _guard: Option<Guard>,
}

impl Entry {
    fn names(&self) -> &[String] {
        self.request.podman.as_ref().map_or(&[], |podman| &podman.names)
    }

    fn added(&self) -> u64 {
        self.request.podman.as_ref().map_or(0, |podman| podman.added)
    }
}

impl PodmanImageStore {
    pub(super) fn new(host: ExhibitHost) -> Self {
        let store = host.store().clone();
        let folder = store.podman_folder();
        Self { host, store, folder, state: Mutex::default() }
    }

    /// Shows an image, and mounts if nothing is shown yet.
    fn add(&self, request: &MountRequest) -> Result<Arc<LoadedImage>> {
        let image = self.host.load(request)?;
        let listed = Listed::load(&self.store, &request.manifest, image.tree())?;
        let id = listed.id();
        let mut state = self.state.lock();
        self.host.show_hidden(request, &image, listed.hidden.clone())?;
        // Names are moved and entries replaced only once it is certain that this image can be shown.
        self.attach(&mut state)?;
        if image.has_pack()
            && let Some(shown) = &state.shown
        {
            // As for other mounts with a boot pack: the kernel would read ahead what the pack omits, and each such read fetches a span.
            shown.mounted.stop_read_ahead();
        }
        let mut request = request.clone();
        request.mountpoint = image_folder(&self.folder, &id);
        let poorer = settle_names(&mut state, id, &mut request);
        if let Err(error) = SavedMount::new(&request).write(&self.store) {
            give_back(&mut state, poorer);
            self.unmount_if_empty(&mut state);
            return Err(Error::new(ErrorKind::Store, "record the image", error));
        }
        poorer.keys().filter_map(|other| state.images.get(other)).for_each(|other| self.note(&other.request));
        let before = state.images.insert(id, Entry { request, image: image.clone(), listed });
        // Layers first. A replaced entry has the same id but other layers.
        let retired = before.map(|before| (Instant::now(), before));
        state.retired.extend(retired);
        self.publish(&mut state, Some(id));
        drop(state);
        image.follow(None);
        Ok(image)
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
    fn remove(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<Option<Vec<Digest>>> {
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

    fn unmount_if_empty(&self, state: &mut State) {
        if state.images.is_empty() {
            state.retired.clear();
            // Dropping it unmounts it; lazily if a container uses it.
            state.shown = None;
        }
    }

    /// Layers shared with `others` stay in any case.
    fn refuse_removal<'a>(&self, listed: &Listed, others: impl Iterator<Item = &'a Listed> + Clone) -> Result<()> {
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
    fn attach(&self, state: &mut State) -> Result<()> {
        if state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached()) {
            return Ok(());
        }
        state.shown = None;
        tarpon_mount::clear_dead(&self.folder).map_err(cannot_mount)?;
        place::make(&self.folder).context(ErrorKind::Store, "make a directory for Podman's store")?;
        let root = self.view(state, |_| true);
        let files = Arc::new(StoreFs::new(root, now(), Box::new(|_| {})));
        let mounted = self.host.mount_files(files.clone(), &self.folder).map_err(|error| {
            cannot_mount(error).hint("images are shown to Podman by root, with /dev/fuse; `tarpon doctor` shows more")
        })?;
        let guard = Guard::start(self.host.server_command(), &self.folder);
        if let Err(error) = &guard {
            tracing::warn!(%error, "Podman's store stays mounted if this server is killed");
        }
        state.shown = Some(Shown { files, mounted, _guard: guard.ok().flatten() });
        Ok(())
    }

    /// Updates the mount, if there is one. `new`: an image whose layers are shown before the image.
    fn publish(&self, state: &mut State, new: Option<Digest>) {
        let Some(files) = state.shown.as_ref().map(|shown| shown.files.clone()) else { return };
        if let Some(new) = new {
            files.set(self.view(state, |id| *id != new), now());
        }
        files.set(self.view(state, |_| true), now());
    }

    fn view(&self, state: &mut State, is_listed: impl Fn(&Digest) -> bool) -> Directory {
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

impl Exhibit for PodmanImageStore {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn accepts(&self, request: &MountRequest) -> bool {
        request.podman.is_some()
    }

    fn shows(&self, manifest: &Digest) -> bool {
        self.state.lock().images.values().any(|entry| entry.request.manifest == *manifest)
    }

    fn image(&self, mountpoint: &Path) -> Option<Arc<LoadedImage>> {
        let state = self.state.lock();
        state.images.values().find(|entry| entry.request.mountpoint == mountpoint).map(|entry| entry.image.clone())
    }

    fn mount(&self, request: MountRequest) -> Result<()> {
        let image = self.add(&request)?;
        if let Err(error) = self.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        self.host.report(&request.mountpoint, &request.image, request.manifest, true);
        self.host.begin_backfill(&request, &image);
        Ok(())
    }

    fn restore(&self, requests: Vec<MountRequest>) -> Vec<Result<()>> {
        let restore = |request| {
            tarpon_mount::clear_dead(&self.folder).map_err(cannot_mount)?;
            self.mount(request)
        };
        requests.into_iter().map(restore).collect()
    }

    fn unmount(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<Option<Vec<Digest>>> {
        let known = {
            let state = self.state.lock();
            let entry = state.images.values().find(|entry| entry.request.mountpoint == mountpoint);
            entry.map(|entry| (entry.request.image.clone(), entry.request.manifest))
        };
        let removed = self.remove(mountpoint, name, force)?;
        if removed.as_ref().is_some_and(|removed| !removed.is_empty())
            && let Some((image, manifest)) = known
        {
            self.host.report(mountpoint, &image, manifest, false);
        }
        Ok(removed)
    }

    fn refuse_if_used(&self) -> Result<()> {
        self.state.lock().images.values().try_for_each(|entry| self.refuse_removal(&entry.listed, iter::empty()))
    }

    fn status(&self) -> Vec<MountStatus> {
        let mut described = {
            let state = self.state.lock();
            let alive = state.shown.as_ref().is_some_and(|shown| shown.mounted.is_attached());
            state.images.values().map(|entry| describe(entry, alive)).collect::<Vec<_>>()
        };
        // Not under the lock: the end of a completion takes its own lock and then checks whether its image is shown here.
        described.iter_mut().for_each(|status| status.backfill = self.host.backfill_status(&status.manifest));
        described
    }

    /// Drops the layers of images that were removed some time ago.
    fn tidy(&self) -> Vec<Digest> {
        let mut state = self.state.lock();
        let before = state.retired.len();
        state.retired.retain(|(since, _)| since.elapsed() < RETIREMENT);
        if state.retired.len() < before {
            self.publish(&mut state, None);
        }
        Vec::new()
    }

    fn count(&self) -> (&'static str, u64) {
        (MODE, self.state.lock().images.len() as u64)
    }
}

/// Names of images, by the images' ids.
type Names = BTreeMap<Digest, Vec<String>>;

/// Makes names unique. The image added later gets a name, and the other one continues without it, as in Podman. Returns the previous names
/// of the images that lost some.
fn settle_names(state: &mut State, id: Digest, request: &mut MountRequest) -> Names {
    let mut poorer = Names::new();
    let Some(podman) = &mut request.podman else { return poorer };
    if let Some(same) = state.images.get(&id) {
        let more: Vec<_> = same.names().iter().filter(|name| !podman.names.contains(name)).cloned().collect();
        podman.names.extend(more);
    }
    for (other_id, other) in state.images.iter_mut().filter(|(other, _)| **other != id) {
        if other.added() > podman.added {
            podman.names.retain(|name| !other.names().contains(name));
        } else if let Some(others) = &mut other.request.podman
            && others.names.iter().any(|name| podman.names.contains(name))
        {
            poorer.insert(*other_id, others.names.clone());
            others.names.retain(|name| !podman.names.contains(name));
        }
    }
    poorer
}

/// Undoes [`settle_names`].
fn give_back(state: &mut State, names: Names) {
    for (id, names) in names {
        if let Some(podman) = state.images.get_mut(&id).and_then(|entry| entry.request.podman.as_mut()) {
            podman.names = names;
        }
    }
}

fn describe(entry: &Entry, alive: bool) -> MountStatus {
    let Entry { request, image, listed } = entry;
    MountStatus {
        mode: MODE.to_owned(),
        podman: Some(PodmanImage { id: listed.id(), names: entry.names().to_vec() }),
        layers: None,
        ..exposed(request, image, alive)
    }
}

//! The store of images as the server sees it.

use std::iter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tarpon_client::protocol::{MountRequest, MountStatus, PodmanImage};
use tarpon_oci::Digest;
use tarpon_server::{Exhibit, LoadedImage, exposed};

use super::entry::Entry;
use super::store::PodmanImageStore;
use crate::Result;

/// The name of these mounts as a mode.
const MODE: &str = "podman";

/// How long the layers of a removed image stay: longer than a Podman command takes from one list to the other.
const RETIREMENT: Duration = Duration::from_secs(20);

impl PodmanImageStore {
    /// What is done for an image that is shown.
    fn follow_up(&self, request: &MountRequest, image: &Arc<LoadedImage>) {
        if let Err(error) = self.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        self.host.report(&request.mountpoint, &request.image, request.manifest, true);
        self.host.begin_backfill(request, image);
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
        self.follow_up(&request, &image);
        Ok(())
    }

    fn restore(&self, requests: Vec<MountRequest>) -> Vec<Result<()>> {
        let restored = self.show_again(&requests);
        let restored = requests.iter().zip(restored);
        restored.map(|(request, image)| image.map(|image| self.follow_up(request, &image))).collect()
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

fn describe(entry: &Entry, alive: bool) -> MountStatus {
    let Entry { request, image, listed } = entry;
    MountStatus {
        mode: MODE.to_owned(),
        podman: Some(PodmanImage { id: listed.id(), names: entry.names().to_vec() }),
        layers: None,
        ..exposed(request, image, alive)
    }
}

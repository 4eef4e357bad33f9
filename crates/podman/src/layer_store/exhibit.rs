//! The store of layers as the server and the file system of its mount see it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tarpon_client::protocol::{LayersPart, MountRequest, MountStatus};
use tarpon_fs::Errno;
use tarpon_oci::{Blob, Digest};
use tarpon_server::{Exhibit, LoadedImage};

use super::entry::Entry;
use super::status;
use super::store::{Door, LayerStore};
use crate::layer_numbers::Diff;
use crate::layer_store_fs::{LayerKey, Layers, ShownLayer, Use};
use crate::{Error, ErrorKind, Result};

/// How long an image without uses is shown: a pull reports them after it has found all layers.
pub(super) const UNUSED: Duration = Duration::from_secs(600);

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

    fn restore(&self, requests: Vec<MountRequest>) -> Vec<Result<()>> {
        let is_image = |request: &MountRequest| matches!(request.layers, Some(LayersPart::Image { .. }));
        // Images first: the mount of the dead server is read as soon as it is taken over.
        let images: Vec<_> =
            requests.iter().map(|request| is_image(request).then(|| self.show(request.clone()))).collect();
        let outcomes = requests.into_iter().zip(images);
        let outcomes = outcomes.map(|(request, shown)| shown.unwrap_or_else(|| self.resume(request))).collect();
        self.give_up_unwanted();
        outcomes
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
            // The next pull searches the image again instead of using the kept result.
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

    fn with_content(&self, key: &LayerKey, content: &Digest) -> Option<Diff> {
        let state = self.state.read();
        let mut found = state.offered.values().filter_map(|offered| offered.find(&key.digest));
        found.find(|layer| layer.diff.digest() == *content).map(|layer| layer.diff.clone())
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

impl Layers for Door {
    fn get(&self, key: &LayerKey) -> Option<ShownLayer> {
        self.0.upgrade()?.get(key)
    }

    fn with_content(&self, key: &LayerKey, content: &Digest) -> Option<Diff> {
        self.0.upgrade()?.with_content(key, content)
    }

    fn find(&self, key: &LayerKey) -> BoxFuture<'static, ()> {
        self.0.upgrade().map_or_else(|| futures::future::ready(()).boxed(), |layers| layers.find(key))
    }

    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()> {
        self.0.upgrade().map_or_else(|| futures::future::ready(()).boxed(), |layers| layers.used(key, change))
    }

    fn blob(&self, key: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, std::result::Result<Bytes, Errno>> {
        let gone = || futures::future::ready(Err(Errno::Io)).boxed();
        self.0.upgrade().map_or_else(gone, |layers| layers.blob(key, offset, length))
    }
}

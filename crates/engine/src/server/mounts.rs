//! The mounts of a server: made, described, unmounted, and noticed when somebody else unmounts them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_fetch::Fetcher;
use tarpon_mount::{Host, MountError, MountSpec, Mounted};
use tarpon_store::Store;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::images::{Image, Images};
use crate::protocol::{LayerVerification, ModeChoice, MountRequest, MountStatus, Unmounted, Writable};
use crate::{Engine, Error, ErrorKind, Result};

/// All mounts of the server.
pub(crate) struct Mounts {
    store: Store,
    host: Host,
    images: Images,
    runtime: Handle,
    served: Mutex<BTreeMap<PathBuf, Arc<Served>>>,
    /// Clients that are being answered.
    busy: AtomicUsize,
    changed: Notify,
}

struct Served {
    request: MountRequest,
    image: Arc<Image>,
    mounted: Mounted,
    before: Baseline,
}

/// What the image had already cost when this mount was made: another mount of it may be older.
struct Baseline {
    fetched_bytes: u64,
    requests: u64,
}

/// A client is being answered for as long as this lives.
pub(super) struct Busy(Arc<Mounts>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

impl Mounts {
    pub(super) fn new(engine: &Engine, runtime: Handle) -> Result<Self> {
        let store = engine.store().clone();
        let fetcher = Fetcher::new(Arc::new(store.clone()), runtime.clone(), tarpon_fetch::Config::default());
        let scratch = store.run_folder().join("mounts");
        let host = Host::new(Arc::new(fetcher.clone()), runtime.clone(), scratch).map_err(cannot_mount)?;
        let images = Images::new(store.clone(), fetcher);
        let (served, busy, changed) = (Mutex::default(), AtomicUsize::new(0), Notify::new());
        Ok(Self { store, host, images, runtime, served, busy, changed })
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(self.clone())
    }

    /// Mounts. The record is written before the kernel is asked, so that no kill leaves an unrecorded mount.
    pub(super) fn mount(self: &Arc<Self>, request: MountRequest) -> Result<MountStatus> {
        let image = self.images.load(&request)?;
        let recorded = |error: tarpon_store::StoreError| Error::new(ErrorKind::Store, "record the mount", error);
        if self.served.lock().contains_key(&request.mountpoint) {
            return Err(Error::new(ErrorKind::CannotMount, "mount", "an image is mounted there already")
                .hint(format!("tarpon umount {}", request.mountpoint.display())));
        }
        super::recover::write_record(&self.store, &request).map_err(recorded)?;
        let transfers = image.transfers();
        let before = Baseline { fetched_bytes: transfers.bytes, requests: transfers.requests };
        let mounted = match self.host.mount(&spec(&self.store, &request, &image)) {
            Ok(mounted) => mounted,
            Err(error) => {
                self.forget(&request.mountpoint);
                return Err(cannot_mount(error));
            }
        };
        if let Err(error) = self.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        let served = Arc::new(Served { request, image, mounted, before });
        let status = served.status();
        self.served.lock().insert(served.request.mountpoint.clone(), served.clone());
        self.runtime.spawn(watch(self.clone(), served));
        self.changed.notify_waiters();
        Ok(status)
    }

    pub(super) fn unmount(&self, mountpoint: &Path) -> Result<Unmounted> {
        let served = self.served.lock().get(mountpoint).cloned();
        let served = served.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "unmount", format!("no image is mounted at {}", mountpoint.display()))
        })?;
        let how = served.mounted.unmount().map_err(cannot_mount)?;
        self.remove(&served);
        Ok(Unmounted { lazily: how == tarpon_mount::Unmounted::Lazy })
    }

    pub(super) fn status(&self) -> Vec<MountStatus> {
        self.served.lock().values().map(|served| served.status()).collect()
    }

    /// Resolves when there is nothing left to serve: no mount, no client, no user of anything unmounted. `patience`: how
    /// long to wait for a first mount.
    pub(super) async fn idle(&self, patience: Duration) {
        let _first = tokio::time::timeout(patience, async {
            while !self.has_mounts() {
                self.wait_for_change().await;
            }
        })
        .await;
        loop {
            if self.has_mounts() || self.busy.load(Ordering::Acquire) > 0 {
                self.wait_for_change().await;
                continue;
            }
            tokio::select! {
                () = self.host.drained() => {
                    if !self.has_mounts() && self.busy.load(Ordering::Acquire) == 0 {
                        return;
                    }
                }
                () = self.wait_for_change() => {}
            }
        }
    }

    /// Also looks by itself now and then, so that a change between the look and the wait costs a second, not for ever.
    async fn wait_for_change(&self) {
        let _lapsed = tokio::time::timeout(Duration::from_secs(1), self.changed.notified()).await;
    }

    /// Unmounts everything; running requests have `patience` to end.
    pub(super) async fn shut_down(&self, patience: Duration) {
        self.host.shut_down(patience).await;
        let served = std::mem::take(&mut *self.served.lock());
        served.keys().for_each(|mountpoint| self.forget(mountpoint));
    }

    fn has_mounts(&self) -> bool {
        !self.served.lock().is_empty()
    }

    /// Takes a mount off the list, unless its place has been taken by another one.
    fn remove(&self, gone: &Arc<Served>) {
        let mut served = self.served.lock();
        let mountpoint = &gone.request.mountpoint;
        if served.get(mountpoint).is_some_and(|there| Arc::ptr_eq(there, gone)) {
            served.remove(mountpoint);
            self.forget(mountpoint);
        }
        drop(served);
        self.changed.notify_waiters();
    }

    fn forget(&self, mountpoint: &Path) {
        if let Err(error) = self.store.forget_mount(mountpoint) {
            tracing::warn!(%error, "the record of an ended mount stays until the next sweep");
        }
    }
}

/// Waits until the mount is gone, whoever unmounts it. Its image stays registered for those who still use it.
async fn watch(mounts: Arc<Mounts>, served: Arc<Served>) {
    served.mounted.wait().await;
    mounts.remove(&served);
    drop(mounts);
    served.mounted.unused().await;
}

impl Served {
    fn status(&self) -> MountStatus {
        let Self { request, image, mounted, before } = self;
        let transfers = image.transfers();
        let verification = image.record.layers.iter().map(|layer| LayerVerification {
            digest: layer.digest,
            format: layer.format.clone(),
            state: layer.verification.clone(),
        });
        let fallback = mounted.fallback_reason().map(|reason| format!("mode fuse, not native: {reason}"));
        MountStatus {
            image: request.image.clone(),
            manifest: request.manifest,
            mountpoint: request.mountpoint.clone(),
            mode: mounted.mode().name().to_owned(),
            writable: request.writable.clone(),
            verification: verification.collect(),
            fallbacks: request.fallbacks.iter().cloned().chain(fallback).collect(),
            alive: mounted.is_attached(),
            server: std::process::id(),
            image_bytes: image.record.compressed_size(),
            fetched_bytes: transfers.bytes.saturating_sub(before.fetched_bytes),
            requests: transfers.requests.saturating_sub(before.requests),
            counters: serde_json::to_value(image.counters()).unwrap_or_default(),
        }
    }
}

fn spec(store: &Store, request: &MountRequest, image: &Image) -> MountSpec {
    MountSpec {
        tree: image.tree.clone(),
        objects: store.objects_folder(),
        mountpoint: request.mountpoint.clone(),
        mode: match request.mode {
            ModeChoice::Auto => tarpon_mount::ModeChoice::Auto,
            ModeChoice::Native => tarpon_mount::ModeChoice::Only(tarpon_mount::Mode::Native),
            ModeChoice::Fuse => tarpon_mount::ModeChoice::Only(tarpon_mount::Mode::Fuse),
        },
        writable: match &request.writable {
            Writable::No => tarpon_mount::Writable::No,
            Writable::Temporary => tarpon_mount::Writable::Temporary,
            Writable::Upper(folder) => tarpon_mount::Writable::Directory(folder.clone()),
        },
        suid: request.suid,
        dev: request.dev,
    }
}

fn cannot_mount(error: MountError) -> Error {
    Error::new(ErrorKind::CannotMount, "mount", error)
}

//! [`Snapshots`]: the operations on snapshots, and their order.
//!
//! ```text
//! Prepare of a pulled layer ─────────► image prepared ─► chain ID matches ─► committed, lazy ─► ALREADY_EXISTS: nothing is downloaded
//!                                            └─ else, if the policy permits ──┐
//! Prepare, View ──────────────────────────────────────────────────────────────┴─► record ─► layers below are mounted ─► mounts
//! ```
//!
//! A snapshot is recorded before its parents are mounted: the record keeps them from being removed meanwhile.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use tarpon_oci::{Digest, Reference};

use crate::error::{Error, Result};
use crate::filter::Filters;
use crate::flights::Flights;
use crate::images::{ChainIds, Images, Outcome};
use crate::labels::{self, LAZY, PulledLayer, UNPACKED, pulled_layer};
use crate::messages::{CommitRequest, CreateRequest, Info, Mount, UpdateRequest};
use crate::mounts;
use crate::pull_credentials::PullInProgress;
use crate::record::{Kind, Labels, LazyLayers, Usage};
use crate::records::{Records, Snapshot};
use crate::usage::usage;

/// All snapshots, and the images below them.
pub(crate) struct Snapshots {
    /// The current records. A reader works on the version that it cloned.
    records: Arc<Mutex<Arc<Records>>>,
    /// Held by writers, one at a time: a writer waits for the disk, readers do not wait for it.
    changing: Arc<tokio::sync::Mutex<()>>,
    images: Arc<dyn Images>,
    /// By the name by which the image is pulled, to which credentials may belong, and the image.
    preparing: Flights<(Reference, Reference), ChainIds>,
    mounting: Flights<PathBuf, Outcome<()>>,
    /// Options of all overlays.
    usual: Vec<String>,
}

impl Snapshots {
    pub(crate) fn open(root: &Path, images: Arc<dyn Images>) -> Result<Self> {
        Ok(Self {
            records: Arc::new(Mutex::new(Arc::new(Records::open(root)?))),
            changing: Arc::default(),
            images,
            preparing: Flights::default(),
            mounting: Flights::default(),
            usual: mounts::usual_options(),
        })
    }

    /// `Prepare` and `View`.
    pub(crate) async fn create(&self, kind: Kind, request: CreateRequest) -> Result<Vec<Mount>> {
        let CreateRequest { key, parent, labels, .. } = request;
        let mut labels: Labels = labels.into_iter().collect();
        if let Some(layer) = pulled_layer(&labels).filter(|_| kind == Kind::Active) {
            match self.create_lazy(layer, &parent, &labels).await {
                Ok(name) => return Err(Error::Exists(name)),
                Err(why) => {
                    self.check_may_unpack(&labels, &why).await?;
                    tracing::warn!(key, "containerd pulls and unpacks this layer: {why}");
                    labels = labels::with(labels, UNPACKED, &why);
                }
            }
        }
        let made = self.change(move |records| records.create(&key, &parent, kind, labels)).await?;
        match self.provide(&made).await {
            Ok(mounts) => Ok(mounts),
            Err(error) => {
                if let Err(problem) = self.remove(&made.record.name).await {
                    tracing::warn!(key = made.record.name, %problem, "a snapshot that failed stays behind");
                }
                Err(error)
            }
        }
    }

    /// Fails if the image of the layer, which is not mounted for this reason, must not be unpacked either: containerd reads no policy.
    async fn check_may_unpack(&self, labels: &Labels, why: &str) -> Result<()> {
        let Some(image) = labels::image(labels) else { return Ok(()) };
        let refused = |refusal: String| match why.contains(&refusal) {
            true => Error::Precondition(why.to_owned()),
            false => Error::Precondition(format!("{why}; containerd must not unpack {image}: {refusal}")),
        };
        self.images.may_unpack(&image).await.map_err(refused)
    }

    /// Commits the layer without unpacking it, and returns its name; fails with the reason why it cannot.
    async fn create_lazy(&self, layer: Outcome<PulledLayer>, parent: &str, labels: &Labels) -> Outcome<String> {
        let layer = layer?;
        let name = layer.chain_id.to_string();
        if self.is_there(&name, parent, labels)? {
            return Ok(name);
        }
        let text = layer.image.to_string();
        let (images, wanted) = (self.images.clone(), layer.clone());
        let chain = self.preparing.join((layer.name, layer.image), || images.prepare(wanted), Err).await?;
        let at = chain.iter().position(|id| *id == layer.chain_id).ok_or_else(|| {
            format!("{text} has no layers with the chain ID {name}: its config is not the one that containerd has")
        })?;
        let below = at.checked_sub(1).map(|below| chain[below].to_string()).unwrap_or_default();
        if below != parent {
            return Err(format!("it is to lie on {parent:?}, the layers of the image lie on {below:?}"));
        }
        let count = at + 1;
        let own_labels =
            labels::with(labels.clone(), LAZY, &format!("layers 1 to {count} of {} of {text}", chain.len()));
        let layers = LazyLayers { image: text, manifest: layer.manifest, count };
        let (new, parent, labels) = (name.clone(), parent.to_owned(), labels.clone());
        let made = self.change(move |records| records.create_lazy(&new, &parent, own_labels, layers)).await;
        match made {
            Ok(made) => {
                tracing::info!(name, image = made.record.lazy.map(|lazy| lazy.image), count, "a layer is not pulled");
                Ok(name)
            }
            // A concurrent call was faster.
            Err(Error::Exists(_)) => {
                let found = self.is_there(&name, &below, &labels)?.then_some(name);
                found.ok_or_else(|| "it was removed meanwhile".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the layer exists already, on the same parent. An error if it cannot be placed there.
    fn is_there(&self, name: &str, parent: &str, labels: &Labels) -> Outcome<bool> {
        let records = self.records();
        if let Ok(there) = records.get(name) {
            // The same chain ID but another blob: facts about one blob do not apply to the other.
            let is_same = labels::layer(&there.record.labels) == labels::layer(labels);
            return match (&there.record.lazy, there.record.parent == parent && is_same) {
                (Some(_), true) => Ok(true),
                _ => Err(format!("{name} is here already, of another layer or on other layers")),
            };
        }
        if parent.is_empty() {
            return Ok(false);
        }
        match records.get(parent) {
            Ok(below) if below.record.lazy.is_some() => Ok(false),
            Ok(_) => Err("the layer below it was unpacked".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes a new snapshot usable, and returns its mounts.
    async fn provide(&self, made: &Snapshot) -> Result<Vec<Mount>> {
        let stack = self.mounted_stack(&made.record.parent).await?;
        if let Some(top) = stack.first() {
            // The root directory of an overlay is that of its upper directory.
            let (from, to) = (top.fs(), made.fs());
            let failed = Error::disk(format!("make {} like {}", to.display(), from.display()));
            self.blocking(move || copy_attributes(&from, &to).map_err(failed)).await?;
        }
        Ok(mounts::mounts(made, &stack, &self.usual))
    }

    /// The stack below a snapshot with this parent, with its image layers mounted.
    async fn mounted_stack(&self, parent: &str) -> Result<Vec<Snapshot>> {
        let stack = self.records().stack(parent)?;
        if let Some(lowest) = stack.last() {
            self.mount(lowest).await?;
        }
        Ok(stack)
    }

    /// Mounts layers of an image, unless they are mounted already.
    async fn mount(&self, snapshot: &Snapshot) -> Result<()> {
        let Some(layers) = snapshot.record.lazy.clone() else { return Ok(()) };
        let (images, place, text) = (self.images.clone(), snapshot.fs(), layers.image.clone());
        let mounted = self.mounting.join(place.clone(), || images.mount(layers, place), Err).await;
        mounted.map_err(|why| Error::Image(format!("mount {text}: {why}")))
    }

    /// Mounts the image layers below snapshots in use again.
    pub(crate) async fn restore(&self) {
        let mut lowest: Vec<Snapshot> = Vec::new();
        let records = self.records();
        let used = records.all().filter(|snapshot| snapshot.record.kind != Kind::Committed);
        let stacks = used.filter_map(|snapshot| records.stack(&snapshot.record.parent).ok()?.pop());
        lowest.extend(stacks.filter(|snapshot| snapshot.record.lazy.is_some()));
        let mut seen = HashSet::new();
        lowest.retain(|snapshot| seen.insert(snapshot.folder.clone()));
        for snapshot in lowest {
            if let Err(error) = self.mount(&snapshot).await {
                tracing::warn!(%error, "not mounted again");
            }
        }
    }

    /// `Mounts`.
    pub(crate) async fn mounts(&self, key: &str) -> Result<Vec<Mount>> {
        let snapshot = self.records().get(key)?.clone();
        if snapshot.record.kind == Kind::Committed {
            return Err(Error::Precondition(format!(
                "{key} is committed: only active snapshots and views are mounted"
            )));
        }
        let stack = self.mounted_stack(&snapshot.record.parent).await?;
        Ok(mounts::mounts(&snapshot, &stack, &self.usual))
    }

    /// `Commit`.
    pub(crate) async fn commit(&self, request: CommitRequest) -> Result<()> {
        let CommitRequest { name, key, labels, parent, .. } = request;
        let active = self.records().get(&key)?.clone();
        if !parent.is_empty() && parent != active.record.parent {
            return Err(Error::Invalid(format!("{key} was made on {:?}, and stays there", active.record.parent)));
        }
        let own = active.record.labels.get_key_value(UNPACKED);
        let own = own.map(|(name, value)| (name.clone(), value.clone()));
        let labels: Labels = labels.into_iter().chain(own).collect();
        let used = self.used_by(active.fs()).await?;
        self.change(move |records| records.commit(&key, &name, labels, used)).await
    }

    /// `Remove`.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        let removed = self.change(move |records| records.remove(&name)).await?;
        let Some(layers) = &removed.record.lazy else {
            self.delete(&removed.folder).await;
            return Ok(());
        };
        let is_used = |other: &LazyLayers| other.image == layers.image;
        if !self.records().all().any(|other| other.record.lazy.as_ref().is_some_and(is_used)) {
            self.images.forget(&layers.image);
        }
        self.clear(&removed.folder).await;
        Ok(())
    }

    /// A pull with credentials has brought the image with this config. From now on it is accessed with them, also where it is mounted.
    pub(crate) async fn pulled(&self, pull: PullInProgress, config: Option<Digest>) {
        let resolved = pull.images();
        // What containerd has unpacked needs no credentials.
        let mut places: HashMap<Reference, Vec<PathBuf>> = HashMap::new();
        for snapshot in self.records().all() {
            let image = snapshot.record.lazy.as_ref().and_then(|layers| layers.image.parse().ok());
            if let Some(image) = image.filter(|image| is_same_repository(image, pull.name())) {
                places.entry(image).or_default().push(snapshot.fs());
            }
        }
        let mut pulled = HashMap::new();
        for (image, places) in places {
            // Containerd does not ask for the layers of an image that it has, and a tag may name another image than before.
            let is_pulled = match (config, self.images.config(&image).await) {
                (Some(pulled), Some(known)) => pulled == known,
                _ => resolved.contains(&image),
            };
            if is_pulled {
                pulled.insert(image, places);
            }
        }
        pull.succeeded(pulled.keys().cloned());
        for (image, places) in pulled {
            for place in places {
                if let Err(problem) = self.images.renew(&image, place).await {
                    tracing::warn!(%image, "a mount keeps the credentials of an earlier pull: {problem}");
                }
            }
        }
    }

    /// `Cleanup`: removes garbage of removed snapshots. It spares a snapshot that is being created: its record exists or the lock is held.
    pub(crate) async fn clean_up(&self) -> Result<()> {
        let rubbish = self.change(|records| records.rubbish()).await?;
        for folder in rubbish {
            self.clear(&folder).await;
        }
        Ok(())
    }

    /// Removes a directory in which layers may be mounted. If that fails, the next cleanup retries.
    async fn clear(&self, folder: &Path) {
        match self.images.unmount(folder.join("fs")).await {
            Ok(()) => self.delete(folder).await,
            Err(problem) => tracing::warn!(folder = %folder.display(), "layers stay mounted: {problem}"),
        }
    }

    async fn delete(&self, folder: &Path) {
        let gone = folder.to_owned();
        let failed = Error::disk(format!("remove {}", folder.display()));
        let deleted = self.blocking(move || match std::fs::remove_dir_all(&gone) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        });
        if let Err(error) = deleted.await {
            tracing::warn!(%error, "left for the next cleanup");
        }
    }

    /// `Stat`.
    pub(crate) fn stat(&self, key: &str) -> Result<Info> {
        self.records().get(key).map(|snapshot| snapshot.record.info())
    }

    /// `Update`: only labels can change.
    pub(crate) async fn update(&self, request: UpdateRequest) -> Result<Info> {
        let info = request.info.ok_or_else(|| Error::Invalid("which snapshot is meant?".to_owned()))?;
        let only = match request.update_mask.map(|mask| mask.paths) {
            None => None,
            Some(paths) if paths.is_empty() || paths.iter().any(|path| path == "labels") => None,
            Some(paths) => Some(paths.iter().map(|path| label_of(path)).collect::<Result<Vec<_>>>()?),
        };
        let labels = info.labels.into_iter().collect();
        let record = self.change(move |records| records.set_labels(&info.name, labels, only.as_deref())).await?;
        Ok(record.info())
    }

    /// `List`.
    pub(crate) fn list(&self, filters: &[String]) -> Result<Vec<Info>> {
        let filters = Filters::parse(filters)?;
        let records = self.records();
        Ok(records.all().filter(|snapshot| filters.fit(&snapshot.record)).map(|found| found.record.info()).collect())
    }

    /// `Usage`. Mounted image layers count as zero: their bytes are in the store, which has a budget of its own.
    pub(crate) async fn usage(&self, key: &str) -> Result<Usage> {
        let snapshot = self.records().get(key)?.clone();
        match snapshot.record.kind {
            Kind::Active => self.used_by(snapshot.fs()).await,
            Kind::Committed | Kind::View => Ok(snapshot.record.usage),
        }
    }

    async fn used_by(&self, folder: PathBuf) -> Result<Usage> {
        let failed = Error::disk(format!("measure {}", folder.display()));
        self.blocking(move || usage(&folder).map_err(failed)).await
    }

    fn records(&self) -> Arc<Records> {
        self.records.lock().clone()
    }

    /// Changes the records, which waits for the disk. A change runs to its end even if the client disconnects.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Records) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (records, turn) = (self.records.clone(), self.changing.clone().lock_owned().await);
        self.blocking(move || {
            let _alone = turn;
            let mut changed = Records::clone(&records.lock());
            let done = change(&mut changed);
            // Also after a failure: assigned numbers stay assigned.
            *records.lock() = Arc::new(changed);
            done
        })
        .await
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let broken = |error: tokio::task::JoinError| Err(Error::Image(error.to_string()));
        tokio::task::spawn_blocking(work).map(|done| done.unwrap_or_else(broken)).await
    }
}

fn is_same_repository(one: &Reference, other: &Reference) -> bool {
    (one.registry(), one.repository()) == (other.registry(), other.repository())
}

/// The label that a path of an update mask names.
fn label_of(path: &str) -> Result<String> {
    let label = path.strip_prefix("labels.").map(str::to_owned);
    label.ok_or_else(|| Error::Invalid(format!("{path:?} of a snapshot does not change")))
}

/// Gives a directory the owner and the mode of another one.
fn copy_attributes(from: &Path, to: &Path) -> std::io::Result<()> {
    let like = std::fs::symlink_metadata(from)?;
    std::os::unix::fs::chown(to, Some(like.uid()), Some(like.gid()))?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(like.mode() & 0o7777))
}

//! Repairs the local objects of mounts that were found damaged while mounted.
//!
//! ```text
//!  verify, scrub, a check before a mount, an open ─► corrupt/HEX-… ─► mend: the kernel drops its caches of the object
//!                                                                      │      (names that are not in use, pages of FUSE)
//!                                                                      └─► the object is fetched again, and its bytes are also
//!                                                                          written into the damaged file, for its open descriptors
//! ```
//!
//! A name that is in use keeps its damaged file. In mode `native`, programs that open it now get that file too, until its bytes are
//! repaired or the last program has closed it. So names are dropped in each round as long as something is not repaired, and pages, which
//! take a walk over whole trees, once. `status` lists by mount what could not be repaired, until it is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, Mode as Permissions, OFlags, ResolveFlags};
use tarpon_blob::LogLimit;
use tarpon_client::protocol::{Mended, UnmendedMount};
use tarpon_fetch::Fetcher;
use tarpon_mount::Mode;
use tarpon_oci::Digest;
use tarpon_store::{DamagedObject, MendedFile, Store, StoreError};
use tarpon_tree::Kind;
use tarpon_tree::erofs::{Image as Tree, ImageError};

use super::damage::{Round, Trouble};
use super::domain::Domain;
use super::images::LoadedImage;
use super::mount_table::MountTable;
use crate::{ErrorKind, Result, ResultExt};

/// Bytes that are fetched and written in one step.
const PIECE: u64 = 1 << 20;
/// How long a round waits for pending fetches and hashes, since its client waits for the response. Longer ones continue, and the next
/// round, half a minute later, checks them again.
const ROUND_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a round waits for the kernel to finish taking pages before it drops cached ones. A read that waits for the registry may hold
/// the lock of a page for 30 seconds; the next round tries again.
const FORGET_LIMIT: Duration = Duration::from_secs(10);

/// A damaged file that mounts may still read, with the facts known about the object.
struct Used {
    damaged: DamagedObject,
    size: u64,
    images: Vec<Arc<LoadedImage>>,
    domain: Arc<Domain>,
    /// All images of the domain.
    all: Arc<Vec<Arc<LoadedImage>>>,
}

impl MountTable {
    /// Starts to scrub the store, at most so many bytes per second. What it finds is repaired in another thread, because readers wait for
    /// it and the scrub has the lowest priority.
    pub(super) fn begin_scrub(self: &Arc<Self>, rate: NonZeroU64) -> Result<()> {
        let mounts = Arc::downgrade(self);
        let repair = move || {
            let Some(mounts) = mounts.upgrade() else { return };
            let runtime = mounts.runtime().clone();
            let mended = runtime.spawn_blocking(move || mounts.mend());
            match runtime.block_on(mended) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "what the scrub found is not mended"),
                Err(error) => tracing::debug!(%error, "the server ends"),
            }
        };
        self.scrub.begin(self.store(), rate, Box::new(repair))
    }

    /// Repairs what was found damaged since the last round. Blocks while it fetches.
    pub(super) fn mend(&self) -> Result<Mended> {
        let mut round = self.damage.round.lock();
        let (mut used, mut problems) = (Vec::new(), BTreeMap::new());
        for domain in self.domains.all() {
            let images = self.images_in_use(&domain);
            let damaged = domain.store.damaged_objects().context(ErrorKind::Store, "mend what is damaged")?;
            problems.extend(self.outdated(&domain, &images));
            used.extend(used_of(&domain, images, damaged));
        }
        let fresh = round.fresh(used.iter().map(|used| used.damaged.clone()));
        let mut mended = 0;
        if !used.is_empty() {
            self.forget_damage(&used, &fresh);
        }
        // Those of an earlier round, too, that could not be dropped within the limit.
        if !self.host().forget_pages(&fresh, FORGET_LIMIT) {
            let concerned: Vec<_> = used.iter().flat_map(|used| used.images.iter().cloned()).collect();
            let problem = "pages of damaged files are in the kernel's cache still; this goes on";
            problems.extend(self.mounts_of(&concerned).into_iter().map(|place| (place, problem.to_owned())));
        }
        if !used.is_empty() {
            self.begin_mending(&mut round, &used);
            mended = self.await_mending(&mut round, &used, &mut problems);
        }
        *self.damage.unmended.lock() = problems;
        Ok(Mended { files: mended, unmended: self.unmended() })
    }

    /// The images of a domain that are loaded, and replaced ones that are still mounted.
    fn images_in_use(&self, domain: &Arc<Domain>) -> Vec<Arc<LoadedImage>> {
        let mut images = domain.images.all();
        let mounted = self.places.mounted();
        let of_domain = mounted.iter().filter(|served| Arc::ptr_eq(&served.domain, domain));
        for image in of_domain.map(|served| &served.image) {
            if !images.iter().any(|known| Arc::ptr_eq(known, image)) {
                images.push(image.clone());
            }
        }
        images
    }

    /// Why mounts of images whose records were rewritten may show damage.
    fn outdated(&self, domain: &Domain, images: &[Arc<LoadedImage>]) -> BTreeMap<PathBuf, String> {
        let is_mounted = self.mounted_filter();
        // In this order: the second check reads the record of the image and examines its files.
        let outdated = images.iter().filter(|image| is_mounted(image) && !domain.images.is_current(image));
        let outdated: Vec<_> = outdated.cloned().collect();
        let problem = "files of its record were damaged while it was mounted: unmount it and mount it again";
        self.mounts_of(&outdated).into_iter().map(|mountpoint| (mountpoint, problem.to_owned())).collect()
    }

    /// Whether [`MountTable::mounts_of`] finds mount points of an image, without the cost of the status of
    /// what is shown to Podman.
    fn mounted_filter(&self) -> impl Fn(&Arc<LoadedImage>) -> bool + use<'_> {
        let mounted = self.places.mounted();
        let of_mounts: HashSet<_> = mounted.iter().map(|served| Arc::as_ptr(&served.image)).collect();
        move |image| of_mounts.contains(&Arc::as_ptr(image)) || self.is_among_others(&image.record.manifest)
    }

    /// The mount points of these images, including those shown to Podman.
    fn mounts_of(&self, images: &[Arc<LoadedImage>]) -> HashSet<PathBuf> {
        if images.is_empty() {
            return HashSet::new();
        }
        let is_of = |image: &Arc<LoadedImage>| images.iter().any(|one| Arc::ptr_eq(one, image));
        let mounted = self.places.mounted();
        let mut places: HashSet<_> = mounted
            .iter()
            .filter(|served| is_of(&served.image))
            .map(|served| served.request.mountpoint.clone())
            .collect();
        let others = self.status_of_others();
        let others = others.into_iter().filter(|mount| images.iter().any(|one| one.record.manifest == mount.manifest));
        places.extend(others.map(|mount| mount.mountpoint));
        places
    }

    /// Drops the kernel's cached names of these files, and the open descriptors of those that are `fresh`.
    fn forget_damage(&self, used: &[Used], fresh: &HashSet<Digest>) {
        for used in used.iter().filter(|used| fresh.contains(&used.damaged.object)) {
            used.domain.images.fetcher().close_local(&used.damaged.object);
        }
        let images: Vec<_> = used.iter().flat_map(|used| used.images.iter().cloned()).collect();
        let concerned = self.mounts_of(&images);
        let others: HashSet<_> = self.places.mounted().iter().map(|served| served.request.mountpoint.clone()).collect();
        // Images shown to Podman are mounted elsewhere.
        self.host().forget_names(|mountpoint| concerned.contains(mountpoint) || !others.contains(mountpoint));
    }

    /// Starts to repair the files that are not being repaired yet.
    fn begin_mending(&self, round: &mut Round, used: &[Used]) {
        let running: HashSet<_> = round.running.values().cloned().collect();
        for used in used.iter().filter(|used| !running.contains(&used.damaged)) {
            let Used { damaged, size, images: holders, domain, all } = used;
            let mounted = self.places.mounted();
            let native = mounted.iter().filter(|served| {
                served.mounted.mode() == Mode::Native && holders.iter().any(|image| Arc::ptr_eq(image, &served.image))
            });
            let job = Job {
                damaged: damaged.clone(),
                size: *size,
                images: all.clone(),
                native: native.map(|served| (served.request.mountpoint.clone(), served.image.clone())).collect(),
                fetcher: domain.images.fetcher().clone(),
                store: domain.store.clone(),
            };
            let places = round.places.clone();
            let started = round.jobs.spawn_on(
                async move {
                    let _place = places.acquire().await;
                    job.run().await
                },
                self.runtime(),
            );
            round.running.insert(started.id(), damaged.clone());
        }
    }

    /// Waits for the repairs, within [`ROUND_TIMEOUT`]. Returns the number of repaired files.
    fn await_mending(&self, round: &mut Round, used: &[Used], problems: &mut BTreeMap<PathBuf, String>) -> u64 {
        let until = tokio::time::Instant::now() + ROUND_TIMEOUT;
        let (mut mended, mut troubles) = (0, HashMap::new());
        let Round { running, jobs, .. } = round;
        self.runtime().block_on(async {
            while let Ok(Some(ended)) = tokio::time::timeout_at(until, jobs.join_next_with_id()).await {
                let (id, outcome) = match ended {
                    Ok((id, outcome)) => (id, outcome),
                    Err(error) => (error.id(), Err(Trouble::Failed(error.to_string()))),
                };
                match (running.remove(&id), outcome) {
                    (_, Ok(())) => mended += 1,
                    (Some(damaged), Err(trouble)) => drop(troubles.insert(damaged, trouble)),
                    (None, Err(_)) => {}
                }
            }
        });
        let late = format!("not fetched within {} s; this goes on", ROUND_TIMEOUT.as_secs());
        troubles.extend(running.values().map(|damaged| (damaged.clone(), Trouble::Failed(late.clone()))));
        for used in used {
            if let Some(trouble) = troubles.get(&used.damaged) {
                self.note(used, trouble, problems);
            }
        }
        tracing::info!(mended, of = used.len(), "damaged files that are mounted were fetched again");
        mended
    }

    fn note(&self, used: &Used, trouble: &Trouble, problems: &mut BTreeMap<PathBuf, String>) {
        let (places, problem) = match trouble {
            Trouble::Failed(cause) => (
                self.mounts_of(&used.images),
                format!("files that were open when they were found damaged cannot be fetched again: {cause}"),
            ),
            Trouble::Shown(places) => (
                places.iter().cloned().collect(),
                "programs that have a file open read what another file holds: end them, or have them open it again"
                    .to_owned(),
            ),
        };
        static UNMENDED: LogLimit = LogLimit::new();
        if let Some(left_out) = UNMENDED.admit() {
            tracing::warn!(object = %used.damaged.object, %problem, "a damaged file that is mounted is not mended{left_out}");
        }
        for place in places {
            problems.entry(place).or_insert_with(|| problem.clone());
        }
    }

    fn unmended(&self) -> Vec<UnmendedMount> {
        let mounts = self.status().into_iter().filter_map(|mount| {
            let problem = mount.damage?;
            Some(UnmendedMount { mountpoint: mount.mountpoint, image: mount.image, problem })
        });
        mounts.collect()
    }
}

/// The damaged files of images that were mounted here. No mount of this server has ever read the others.
fn used_of(domain: &Arc<Domain>, images: Vec<Arc<LoadedImage>>, damaged: Vec<DamagedObject>) -> Vec<Used> {
    let all = Arc::new(images);
    let used = damaged.into_iter().filter_map(|damaged| {
        let has_it = |image: &&Arc<LoadedImage>| image.handle().object_size(&damaged.object).is_some();
        let images: Vec<_> = all.iter().filter(has_it).cloned().collect();
        let size = images.first()?.handle().object_size(&damaged.object)?;
        Some(Used { damaged, size, images, domain: domain.clone(), all: all.clone() })
    });
    used.collect()
}

/// The repair of one damaged file.
struct Job {
    damaged: DamagedObject,
    size: u64,
    /// All images of its domain.
    images: Arc<Vec<Arc<LoadedImage>>>,
    /// The mounts in mode `native` that may have the file open.
    native: Vec<(PathBuf, Arc<LoadedImage>)>,
    fetcher: Fetcher,
    store: Store,
}

impl Job {
    /// Fetches an object, and writes it into the damaged file as well.
    async fn run(self) -> std::result::Result<(), Trouble> {
        let Some(file) = self.store.mend(&self.damaged)? else { return Ok(()) };
        let file = Arc::new(file);
        let is_object = |digest: &Digest| self.images.iter().any(|image| image.handle().object_size(digest).is_some());
        // A file that cannot be read does not count as another object.
        if let Ok(digest) = blocking(&file, MendedFile::digest).await
            && is_object(&digest)
        {
            return self.leave(&file, &digest).await;
        }
        let mut at = 0;
        while at < self.size {
            let bytes = self.fetcher.read(&self.damaged.object, at, (self.size - at).min(PIECE)).await;
            let bytes = bytes.map_err(|error| Trouble::Failed(error.to_string()))?.into_bytes();
            if bytes.is_empty() {
                return Err(Trouble::Failed("it ends too soon".to_owned()));
            }
            let (offset, count) = (at, bytes.len() as u64);
            blocking(&file, move |file| file.write_at(&bytes, offset)).await?;
            at += count;
        }
        let size = self.size;
        blocking(&file, move |file| file.finish(size)).await
    }

    /// Leaves a file that holds another object, because it was renamed. A program that opened it before the rename reads the right bytes,
    /// and a change would break that. One that opened it since reads the wrong bytes until it closes the file.
    async fn leave(self, file: &Arc<MendedFile>, digest: &Digest) -> std::result::Result<(), Trouble> {
        let (object, native) = (self.damaged.object, self.native);
        tracing::debug!(%object, %digest, "a file of the store was in the place of another one");
        let shown = blocking(file, move |file| {
            let shows = |(mountpoint, image): &(PathBuf, Arc<LoadedImage>)| shows(mountpoint, image, &object, file);
            let shown: Vec<_> = native.into_iter().filter(shows).map(|(mountpoint, _)| mountpoint).collect();
            if shown.is_empty() { file.leave().map(|()| shown) } else { file.keep().map(|()| shown) }
        });
        let shown = shown.await?;
        if shown.is_empty() { Ok(()) } else { Err(Trouble::Shown(shown)) }
    }
}

/// Runs the call on a thread for blocking work, because it may take as long as the disk takes.
async fn blocking<T: Send + 'static>(
    file: &Arc<MendedFile>,
    call: impl FnOnce(&MendedFile) -> std::result::Result<T, StoreError> + Send + 'static,
) -> std::result::Result<T, Trouble> {
    let file = file.clone();
    let called = tokio::task::spawn_blocking(move || call(&file)).await;
    Ok(called.map_err(|error| Trouble::Failed(error.to_string()))??)
}

/// Whether a mount shows the content of `file` where it should show `object`. Names not in use were dropped, so a name that still shows it
/// is in use.
fn shows(mountpoint: &Path, image: &LoadedImage, object: &Digest, file: &MendedFile) -> bool {
    let places = places_of(image, object).unwrap_or_else(|error| {
        tracing::debug!(%error, "a tree cannot be read");
        Vec::new()
    });
    let shown = places.iter().filter_map(|place| open_below(mountpoint, place).ok());
    // A file that cannot be read causes errors for its readers, but not wrong data.
    shown.into_iter().any(|shown| file.is_same_as(&shown).unwrap_or(false))
}

/// The paths of regular files that hold the object.
fn places_of(image: &LoadedImage, object: &Digest) -> std::result::Result<Vec<PathBuf>, ImageError> {
    let tree = Tree::open(&image.tree.bytes)?;
    let (mut found, mut pending) = (Vec::new(), vec![(tree.root(), PathBuf::new())]);
    while let Some((directory, path)) = pending.pop() {
        for entry in tree.read_dir(directory, 0)? {
            let entry = entry?;
            let place = || path.join(std::ffi::OsStr::from_bytes(entry.name));
            match entry.kind {
                Kind::Directory if entry.name != b"." && entry.name != b".." => pending.push((entry.nid, place())),
                Kind::File if tree.object(entry.nid)? == Some(*object) => found.push(place()),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Opens a file of a mount, but none outside of it or on another mount.
fn open_below(mountpoint: &Path, path: &Path) -> rustix::io::Result<File> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, mountpoint, directory, Permissions::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
    rustix::fs::openat2(directory, path, flags, Permissions::empty(), resolve).map(File::from)
}

#[cfg(test)]
mod tests {
    use tarpon_client::mount_record::described;
    use tarpon_client::protocol::MountRequest;
    use tarpon_images::{ImageRequest, Images, Silent};
    use tarpon_registry::serve::Contents;
    use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
    use tarpon_testkit::registry::{Auth, FakeRegistry};
    use tarpon_testkit::server::TestServer;

    use super::*;
    use crate::ServerSetup;

    #[tokio::test]
    async fn a_loaded_image_is_compared_with_its_record_only_while_it_has_mount_points() {
        let layer = estargz(&[Item::file("name", "content")], EstargzOptions::default());
        let image = ImageBuilder::new().layer(layer).build();
        let mut contents = Contents::new();
        for (_, blob) in image.blobs() {
            contents.add_blob(blob);
        }
        contents.add_manifest(Some(("app", "v1")), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
        let server = TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("store")).unwrap();
        let text = format!("{}/app:v1", server.host());
        let request = ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap());
        let prepared = images.prepare(&request, &Silent).await.unwrap();
        let mounts = MountTable::alone(&ServerSetup::of(&images), tokio::runtime::Handle::current()).unwrap();
        let request = MountRequest::for_image(&prepared, "/nowhere".into());
        let image = mounts.domains.whole().images.load(&request).unwrap();
        assert!(!mounts.mounted_filter()(&image), "its mounts have ended");
        mounts.add_lost(described(&request));
        assert!(mounts.mounted_filter()(&image));
        assert_eq!(mounts.mounts_of(&[image]), [request.mountpoint].into());
    }

    #[test]
    fn pages_of_a_damaged_file_are_forgotten_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), tarpon_store::StoreConfig::default()).unwrap();
        let objects = [b"one", b"two"].map(|name| Digest::of(name));
        let add = |object: &Digest, name: &str| {
            std::fs::create_dir_all(folder.path().join("corrupt")).unwrap();
            std::fs::write(folder.path().join(format!("corrupt/{}-{name}", object.hex())), "damaged").unwrap();
        };
        let mut round = Round::default();
        let mut fresh = || round.fresh(store.damaged_objects().unwrap().into_iter());
        add(&objects[0], "first");
        assert_eq!(fresh(), [objects[0]].into());
        assert_eq!(fresh(), HashSet::new());
        add(&objects[1], "first");
        assert_eq!(fresh(), [objects[1]].into());
        add(&objects[0], "again");
        assert_eq!(fresh(), [objects[0]].into(), "it was damaged again");
        std::fs::remove_dir_all(folder.path().join("corrupt")).unwrap();
        assert_eq!(fresh(), HashSet::new());
        add(&objects[0], "first");
        assert_eq!(fresh(), [objects[0]].into());
    }
}

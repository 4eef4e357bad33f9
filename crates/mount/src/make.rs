//! [`Maker`]: builds a mount from its parts and attaches the finished one.
//!
//! Everything is made detached first and attached last, so a failed or killed mount leaves nothing behind.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::mount::MountAttrFlags;
use tarpon_fs::{ImageFs, ObjectFs, Objects, Operations, Reads};
use tokio::runtime::Handle;

use crate::adapter::{Adapter, OpenPolicy, Opens};
use crate::connection::Connection;
use crate::device;
use crate::erofs::{self, Backing};
use crate::error::MountError;
use crate::fusermount;
use crate::holder::ConnectionHolder;
use crate::kernel::{self, StepError, io_step};
use crate::mounted::{Live, Parts};
use crate::mountpoint::Mountpoint;
use crate::opening;
use crate::overlay::{self, DataLayers, ImageLayers, Manner, Reach, Reachable};
use crate::pool::{ConnectionPool, LazyObjects, Shared};
use crate::spec::{Mode, MountSpec, Writable};
use crate::table::{self, SOURCE};
use crate::upper::Upper;

/// Makes mounts for one [`crate::Host`].
pub(crate) struct Maker {
    objects: Arc<dyn Objects>,
    /// Identifies mounts with the same objects.
    number: u64,
    runtime: Handle,
    scratch: PathBuf,
    reach: Reach,
    data: DataLayers,
    /// What the kernel is to mount trees from.
    erofs: Backing,
    pool: Arc<ConnectionPool>,
    /// Source of its mounts in the table of mounts.
    source: OsString,
    holder: Arc<dyn ConnectionHolder>,
}

impl Maker {
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        runtime: Handle,
        scratch: PathBuf,
        reach: Reach,
        pool: Arc<ConnectionPool>,
        holder: Arc<dyn ConnectionHolder>,
    ) -> Self {
        Self {
            objects,
            number: 0,
            runtime,
            scratch,
            reach,
            data: DataLayers::of_this_kernel(),
            erofs: Backing::first(),
            pool,
            source: SOURCE.into(),
            holder,
        }
    }

    /// The same for other objects, which have this number.
    pub(crate) fn beside(&self, objects: Arc<dyn Objects>, number: u64) -> Self {
        Self {
            objects,
            number,
            runtime: self.runtime.clone(),
            scratch: self.scratch.clone(),
            reach: self.reach,
            data: self.data,
            erofs: self.erofs,
            pool: self.pool.clone(),
            source: self.source.clone(),
            holder: self.holder.clone(),
        }
    }

    /// Records the store in the table of mounts.
    pub(crate) fn name_store(&mut self, store: &Path) {
        self.source = table::source_of(store);
    }

    fn manner(&self) -> Manner<'_> {
        Manner { source: &self.source, reach: self.reach, data: self.data }
    }

    /// Mounts overlayfs over EROFS, local objects and the shared FUSE connection.
    pub(crate) fn native(&self, spec: &MountSpec, mountpoint: &Mountpoint) -> Result<Live, MountError> {
        if !rustix::process::geteuid().is_root() {
            return Err(unsupported(Mode::Native, "it needs root"));
        }
        if let Some(reason) = overlay::missing_here(self.data) {
            return Err(unsupported(Mode::Native, reason));
        }
        if spec.watch.is_some() {
            return Err(unsupported(
                Mode::Native,
                "the kernel reads local files by itself, so its reads cannot be watched",
            ));
        }
        let upper = self.pool.uppers().prepare(&spec.writable, &self.scratch)?;
        let made = self.native_image(spec, upper.as_ref());
        let NativeImage { mount, lazy, tree } = match made {
            Ok(made) => made,
            Err(error) => {
                upper.into_iter().for_each(Upper::clean_up);
                return Err(unsupported(Mode::Native, error));
            }
        };
        let connection = lazy.connection.clone();
        self.attach(
            &mount,
            mountpoint,
            Parts { unique: table::unique_id_of(mount.as_fd()), connection, tree, lazy: Some(lazy), upper },
        )
    }

    /// Where the upper goes, in the image's overlay or on top of it: see [`Writable`].
    fn native_image(&self, spec: &MountSpec, upper: Option<&Upper>) -> Result<NativeImage, StepError> {
        let attributes = attributes(spec);
        let lazy = self.lazy_objects(spec.read_ahead)?;
        if !spec.read_ahead {
            lazy.connection.stop_read_ahead();
        }
        let (tree, tree_connection) = self.native_tree(spec)?;
        let tree = Reachable::new(tree, self.reach, &self.scratch)?;
        let objects =
            rustix::fs::open(&spec.objects, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, FileMode::empty())
                .map_err(|errno| StepError::new(format!("open {}", spec.objects.display()), errno))?;
        let layers = ImageLayers { tree: tree.root(), objects: objects.as_fd(), lazy: lazy.root.root() };
        let mount = match (&spec.writable, upper) {
            (Writable::Upper(_) | Writable::Discarded(_), Some(upper)) => {
                let image = overlay::image(&layers, None, self.manner(), overlay::INNER)?;
                let image = Reachable::new(image, self.reach, &self.scratch)?;
                overlay::writable(image.root(), upper, self.manner(), attributes)?
            }
            (_, upper) => overlay::image(&layers, upper, self.manner(), attributes)?,
        };
        Ok(NativeImage { mount, lazy, tree: tree_connection })
    }

    /// A mount of the metadata: EROFS, or in a user namespace, where the kernel mounts no EROFS, a FUSE file system with a connection
    /// of its own.
    fn native_tree(&self, spec: &MountSpec) -> Result<(OwnedFd, Option<u32>), StepError> {
        if overlay::is_initial_user_namespace() {
            return Ok((erofs::mount(&*self.data.tree(&spec.tree, &self.scratch)?, self.erofs)?.0, None));
        }
        let adapter = self.tree_adapter(spec).map_err(|error| io_step("read the tree", &io::Error::other(error)))?;
        let (connection, mount) = Connection::open(adapter, &self.source, overlay::INNER, &self.holder)?;
        Ok((mount, self.enrolled(connection).number()))
    }

    /// Mounts one FUSE file system with the whole tree; for a writable mount, overlayfs on top.
    pub(crate) fn fuse(&self, spec: &MountSpec, mountpoint: &Mountpoint) -> Result<Live, MountError> {
        if rustix::process::geteuid().is_root() {
            self.fuse_as_root(spec, mountpoint)
        } else {
            self.fuse_unprivileged(spec, mountpoint)
        }
    }

    fn fuse_as_root(&self, spec: &MountSpec, mountpoint: &Mountpoint) -> Result<Live, MountError> {
        let files = image_files(spec)?;
        let policy = opening::of_new_mount(spec, &files);
        let adapter = self.image_adapter(spec, files, policy);
        let upper = self.pool.uppers().prepare(&spec.writable, &self.scratch)?;
        let attributes = attributes(spec);
        let made = Connection::open(adapter, &self.source, attributes, &self.holder).and_then(|(connection, mount)| {
            match &upper {
                None => Ok((connection, mount)),
                Some(upper) => {
                    let image = Reachable::new(mount, self.reach, &self.scratch)?;
                    Ok((connection, overlay::writable(image.root(), upper, self.manner(), attributes)?))
                }
            }
        });
        let (connection, mount) = match made {
            Ok(made) => made,
            Err(error) => {
                let reason = upper.as_ref().and_then(|_| overlay::refusal());
                upper.into_iter().for_each(Upper::clean_up);
                let reason = reason.map_or_else(|| error.to_string(), |reason| format!("{error}: {reason}"));
                return Err(unsupported(Mode::Fuse, reason));
            }
        };
        let connection = self.enrolled(connection);
        self.attach(
            &mount,
            mountpoint,
            Parts { unique: table::unique_id_of(mount.as_fd()), connection, tree: None, lazy: None, upper },
        )
    }

    /// Mounts one FUSE file system that shows `files`, whose listing may change.
    pub(crate) fn files(&self, files: Arc<dyn Operations>, mountpoint: &Mountpoint) -> Result<Live, MountError> {
        let adapter = self.files_adapter(files, Opens::default());
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let made = Connection::open(adapter, &self.source, attributes, &self.holder);
        let (connection, mount) = made.map_err(|error| unsupported(Mode::Fuse, error))?;
        let connection = self.enrolled(connection);
        self.attach(
            &mount,
            mountpoint,
            Parts { unique: table::unique_id_of(mount.as_fd()), connection, tree: None, lazy: None, upper: None },
        )
    }

    fn fuse_unprivileged(&self, spec: &MountSpec, mountpoint: &Mountpoint) -> Result<Live, MountError> {
        if spec.writable != Writable::No {
            return Err(unsupported(
                Mode::Fuse,
                "a writable mount needs root, or a user namespace: try it inside `unshare --user --map-root-user --mount`",
            ));
        }
        device::open().map_err(|error| unsupported(Mode::Fuse, error))?;
        if !fusermount::is_installed() {
            let reason = "fusermount3 is not installed: it is in the package fuse3 of most distributions";
            return Err(unsupported(Mode::Fuse, reason));
        }
        let adapter = self.image_adapter(spec, image_files(spec)?, OpenPolicy::NoOpen);
        let connection = Connection::open_unprivileged(adapter, &self.source, &mountpoint.path, &self.holder)
            .map_err(|error| unsupported(Mode::Fuse, error))?;
        let connection = self.enrolled(connection);
        let entry = table::mount_at(&mountpoint.path).map_err(MountError::io("read the table of mounts"))?;
        let id = entry.map(|entry| entry.id).ok_or_else(|| unsupported(Mode::Fuse, "the mount did not appear"))?;
        Ok(Live::new(
            mountpoint.path.clone(),
            id,
            self.pool.clone(),
            Parts { unique: None, connection, tree: None, lazy: None, upper: None },
        ))
    }

    pub(crate) fn objects_adapter(&self, files: ObjectFs) -> Adapter {
        let reads = Reads::new(self.objects.clone());
        Adapter::new(Arc::new(files), reads, self.runtime.clone(), OpenPolicy::NoOpen)
    }

    pub(crate) fn files_adapter(&self, files: Arc<dyn Operations>, opens: Opens) -> Adapter {
        let (reads, runtime) = (Reads::new(self.objects.clone()), self.runtime.clone());
        Adapter::new(files, reads, runtime, OpenPolicy::PassThrough(opens))
    }

    /// Serves the metadata of an image to overlayfs in a user namespace.
    pub(crate) fn tree_adapter(&self, spec: &MountSpec) -> Result<Adapter, MountError> {
        let files = ImageFs::with_redirects(spec.tree.bytes.clone());
        let files = files.map_err(|error| MountError::Tree { problem: error.to_string() })?;
        let reads = Reads::new(self.objects.clone());
        Ok(Adapter::new(Arc::new(files), reads, self.runtime.clone(), OpenPolicy::NoOpen))
    }

    /// Serves a whole image.
    pub(crate) fn image_adapter(&self, spec: &MountSpec, files: ImageFs<Bytes>, policy: OpenPolicy) -> Adapter {
        let objects = spec.watch.as_ref().map_or_else(|| self.objects.clone(), |watch| watch.0.clone());
        let adapter = Adapter::new(Arc::new(files), Reads::new(objects), self.runtime.clone(), policy);
        if spec.read_ahead && spec.watch.is_none() { adapter } else { adapter.without_read_ahead() }
    }

    /// Returns the shared connection; a new one if there is none or it is broken.
    fn lazy_objects(&self, read_ahead: bool) -> Result<Arc<LazyObjects>, StepError> {
        // Only root of the host can disable the kernel's read-ahead later.
        let shared = Shared { objects: self.number, read_ahead: read_ahead || overlay::is_initial_user_namespace() };
        self.pool.share(shared, |lazy| !*lazy.connection.ended().borrow(), || self.new_lazy_objects(shared.read_ahead))
    }

    fn new_lazy_objects(&self, read_ahead: bool) -> Result<Arc<LazyObjects>, StepError> {
        let adapter = self.objects_adapter(ObjectFs::new(self.objects.clone()));
        let adapter = if read_ahead { adapter } else { adapter.without_read_ahead() };
        let (connection, mount) = Connection::open(adapter, &self.source, overlay::INNER, &self.holder)?;
        let connection = self.enrolled(connection);
        let root = Reachable::new(mount, self.reach, &self.scratch)?;
        Ok(Arc::new(LazyObjects { connection, root }))
    }

    pub(crate) fn enrolled(&self, connection: Connection) -> Arc<Connection> {
        let connection = Arc::new(connection);
        self.pool.add_connection(connection.clone());
        connection
    }

    fn attach(&self, mount: &OwnedFd, mountpoint: &Mountpoint, parts: Parts) -> Result<Live, MountError> {
        let id = table::mount_id(mount.as_fd()).map_err(MountError::io("identify the new mount"));
        let attached = id.and_then(|id| {
            kernel::attach(mount.as_fd(), mountpoint.directory.as_fd(), &mountpoint.path)?;
            Ok(id)
        });
        match attached {
            Ok(id) => Ok(Live::new(mountpoint.path.clone(), id, self.pool.clone(), parts)),
            Err(error) => {
                parts.upper.into_iter().for_each(Upper::clean_up);
                Err(error)
            }
        }
    }

    pub(crate) fn pool(&self) -> &Arc<ConnectionPool> {
        &self.pool
    }

    pub(crate) fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }
}

/// A mount in mode `native`, not attached yet.
struct NativeImage {
    mount: OwnedFd,
    lazy: Arc<LazyObjects>,
    /// Number of the FUSE connection with the metadata, if that is not EROFS.
    tree: Option<u32>,
}

/// The files of an image.
pub(crate) fn image_files(spec: &MountSpec) -> Result<ImageFs<Bytes>, MountError> {
    ImageFs::new(spec.tree.bytes.clone()).map_err(|error| MountError::Tree { problem: error.to_string() })
}

fn attributes(spec: &MountSpec) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, !spec.dev);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !spec.suid);
    attributes
}

fn unsupported(mode: Mode, reason: impl ToString) -> MountError {
    MountError::Unsupported { mode, reason: reason.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::print_stdout)]
mod tests {
    use std::fs::File;

    use futures::future::BoxFuture;
    use tarpon_fs::Errno;
    use tarpon_oci::Digest;
    use tarpon_testkit::entries::{Made, dir, file, layer};

    use super::*;
    use crate::spec::{ModeChoice, TreeFile};

    /// Objects of three bytes each, which arrive late or never.
    struct Abc {
        never: bool,
    }

    impl Objects for Abc {
        fn size(&self, _: &Digest) -> Option<u64> {
            Some(3)
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            let never = self.never;
            Box::pin(async move { if never { std::future::pending().await } else { Ok(Bytes::from_static(b"abc")) } })
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    /// Objects of three bytes each, which arrive once a given number of readers waits for them.
    struct Together(Arc<tokio::sync::Barrier>);

    impl Objects for Together {
        fn size(&self, _: &Digest) -> Option<u64> {
            Some(3)
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            let all = self.0.clone();
            Box::pin(async move {
                // Far longer than it takes until all readers wait.
                let timeout = std::time::Duration::from_secs(20);
                tokio::time::timeout(timeout, all.wait()).await.map_err(|_| Errno::Io)?;
                Ok(Bytes::from_static(b"abc"))
            })
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    fn opened(path: &Path) -> Mountpoint {
        crate::mountpoint::prepare(path, &crate::protected::Protected::default()).unwrap()
    }

    struct Fixture {
        maker: Maker,
        spec: MountSpec,
        runtime: tokio::runtime::Runtime,
        folder: tempfile::TempDir,
    }

    impl Fixture {
        fn new(reach: Reach, never: bool) -> Option<Self> {
            Self::with(reach, Arc::new(Abc { never }), [file("f", "abc")])
        }

        fn with(reach: Reach, objects: Arc<dyn Objects>, files: impl IntoIterator<Item = Made>) -> Option<Self> {
            if !rustix::process::geteuid().is_root() || device::open().is_err() {
                println!("skipped: mounting needs root and /dev/fuse");
                return None;
            }
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            for name in ["objects", "run", "mnt"] {
                std::fs::create_dir(path(name)).unwrap();
            }
            let layers = [layer(files)];
            let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap());
            std::fs::write(path("tree"), &tree).unwrap();
            let spec = MountSpec {
                tree: TreeFile { file: Arc::new(File::open(path("tree")).unwrap()), bytes: tree.into() },
                objects: path("objects"),
                mountpoint: path("mnt"),
                mode: ModeChoice::Auto,
                writable: Writable::No,
                suid: false,
                dev: false,
                read_ahead: true,
                watch: None,
            };
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let pool = Arc::default();
            let holder = Arc::new(crate::holder::NoHolder);
            let maker = Maker::new(objects, runtime.handle().clone(), path("run"), reach, pool, holder);
            Some(Self { maker, spec, runtime, folder })
        }

        fn private_mounts(&self) -> usize {
            let run = self.folder.path().join("run");
            table::mounts().unwrap().iter().filter(|mount| mount.mountpoint.starts_with(&run)).count()
        }
    }

    #[test]
    fn a_tree_on_a_loop_device_is_mounted_and_the_device_ends_with_the_mount() {
        let Some(mut fixture) = Fixture::new(Reach::ByPath, false) else { return };
        if !Path::new("/dev/loop-control").exists() {
            return println!("skipped: there are no loop devices");
        }
        fixture.maker.erofs = Backing::LoopDevice;
        let folder = fixture.folder.path().canonicalize().unwrap();
        let devices = || {
            let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
            let files = devices.filter_map(|it| std::fs::read_to_string(it.path().join("loop/backing_file")).ok());
            files.filter(|file| Path::new(file.trim_end()).starts_with(&folder)).count()
        };
        let mountpoint = fixture.spec.mountpoint.clone();
        let live = fixture.maker.native(&fixture.spec, &opened(&mountpoint)).unwrap();
        assert_eq!(std::fs::read(mountpoint.join("f")).unwrap(), b"abc");
        assert_eq!(devices(), 1);
        live.unmount(true).unwrap();
        assert_eq!(devices(), 0);
    }

    #[test]
    fn kernels_without_data_only_layers_show_the_same_image() {
        let files = [dir("00"), file("00/f", "abc"), dir("etc"), file("etc/f", "abc"), file("ff", "abc")];
        for reach in [Reach::of_this_kernel(), Reach::ByPath] {
            let Some(mut fixture) = Fixture::with(reach, Arc::new(Abc { never: false }), files.clone()) else { return };
            fixture.maker.data = DataLayers::Ordinary;
            let hex = Digest::of(b"abc").hex();
            let folder = fixture.spec.objects.join(&hex[..2]);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(&hex[2..]), "abc").unwrap();
            let mountpoint = fixture.spec.mountpoint.clone();
            let list = |path: &Path| {
                let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
                names.collect::<std::collections::BTreeSet<_>>()
            };
            let upper = Writable::Upper(fixture.folder.path().join("upper"));
            for writable in [Writable::No, Writable::Temporary, upper] {
                let is_writable = writable != Writable::No;
                fixture.spec.writable = writable;
                let live = fixture.maker.native(&fixture.spec, &opened(&mountpoint)).unwrap();
                assert_eq!(list(&mountpoint), ["00", "etc", "ff"].map(OsString::from).into());
                assert_eq!(list(&mountpoint.join("00")), ["f"].map(OsString::from).into());
                for name in ["00/f", "etc/f", "ff"] {
                    assert_eq!(std::fs::read(mountpoint.join(name)).unwrap(), b"abc", "{name}");
                }
                for hidden in ["01", &hex[..2]] {
                    assert!(!mountpoint.join(hidden).exists(), "{hidden}");
                }
                if is_writable {
                    let made = mountpoint.join(&hex[..2]);
                    std::fs::create_dir(&made).unwrap();
                    assert!(list(&made).is_empty(), "the objects stay hidden below a new directory of this name");
                    std::fs::remove_dir(&made).unwrap();
                }
                live.unmount(true).unwrap();
            }
        }
    }

    #[test]
    fn kernels_that_take_no_detached_mounts_are_given_paths() {
        let Some(mut fixture) = Fixture::new(Reach::ByPath, false) else { return };
        let mountpoint = fixture.spec.mountpoint.clone();
        for writable in [Writable::No, Writable::Temporary, Writable::Upper(fixture.folder.path().join("upper"))] {
            fixture.spec.writable = writable;
            let live = fixture.maker.native(&fixture.spec, &opened(&mountpoint)).unwrap();
            assert_eq!(std::fs::read(mountpoint.join("f")).unwrap(), b"abc");
            assert_eq!(fixture.private_mounts(), 1, "the shared FUSE mount alone");
            live.unmount(true).unwrap();
            assert_eq!(fixture.private_mounts(), 1, "which is kept for the next one");
            fixture.maker.pool.release();
            assert_eq!(fixture.private_mounts(), 0);
        }
    }

    #[test]
    fn content_that_is_discarded_is_not_synced_and_a_mount_that_a_crash_ended_can_be_made_again() {
        let Some(mut fixture) = Fixture::new(Reach::of_this_kernel(), false) else { return };
        let mountpoint = fixture.spec.mountpoint.clone();
        let upper = fixture.folder.path().join("upper");
        // As the kernel leaves it.
        std::fs::create_dir_all(fixture.folder.path().join(".upper.tarpon-work/work/incompat/volatile")).unwrap();
        for (writable, is_volatile) in [(Writable::Discarded(upper.clone()), true), (Writable::Upper(upper), false)] {
            fixture.spec.writable = writable;
            let live = fixture.maker.native(&fixture.spec, &opened(&mountpoint)).unwrap();
            std::fs::write(mountpoint.join("new"), "x").unwrap();
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let line = table.lines().find(|line| line.contains(&*mountpoint.to_string_lossy())).unwrap();
            assert_eq!(line.contains("volatile"), is_volatile, "{line}");
            live.unmount(true).unwrap();
        }
    }

    #[test]
    fn the_upper_of_a_lazily_unmounted_mount_is_removed_with_its_last_user() {
        let Some(mut fixture) = Fixture::new(Reach::of_this_kernel(), false) else { return };
        let mut native = |name: &str, writable| {
            let mountpoint = fixture.folder.path().join(name);
            std::fs::create_dir_all(&mountpoint).unwrap();
            fixture.spec.writable = writable;
            fixture.maker.native(&fixture.spec, &opened(&mountpoint)).unwrap()
        };
        let (left, other) = (native("mnt", Writable::Temporary), native("other", Writable::No));
        let user = File::open(left.mountpoint().join("f")).unwrap();
        let connection = fixture.maker.pool.connections().remove(0);
        assert_eq!(left.unmount(true).unwrap(), crate::Unmounted::Lazy);
        let later = native("later", Writable::No);
        let is_upper = |name: OsString| !name.to_string_lossy().starts_with("layer-");
        let names =
            || std::fs::read_dir(fixture.folder.path().join("run")).unwrap().map(|entry| entry.unwrap().file_name());
        let uppers = || names().filter(|name| is_upper(name.clone())).count();
        assert_eq!(uppers(), 1, "it is in use");
        drop(user);
        other.unmount(true).unwrap();
        let ended = async { connection.ended().wait_for(|ended| *ended).await.map(|_| ()) };
        let timeout = std::time::Duration::from_secs(60);
        fixture.runtime.block_on(async { tokio::time::timeout(timeout, ended).await }).unwrap().unwrap();
        fixture.maker.pool.tidy();
        assert_eq!(uppers(), 0);
        assert_eq!(std::fs::read(later.mountpoint().join("f")).unwrap(), b"abc");
        later.unmount(true).unwrap();
    }

    #[test]
    fn private_mounts_of_a_killed_server_are_swept() {
        let Some(fixture) = Fixture::new(Reach::ByPath, false) else { return };
        std::mem::forget(fixture.maker.lazy_objects(true).unwrap());
        assert_eq!(fixture.private_mounts(), 1);
        overlay::sweep(&fixture.folder.path().join("run"));
        assert_eq!(fixture.private_mounts(), 0);
    }

    #[test]
    fn a_crowd_of_readers_waits_for_the_server_and_not_in_the_queue_of_the_kernel() {
        const READERS: usize = 400;
        let all = Arc::new(tokio::sync::Barrier::new(READERS));
        let files = (0..READERS).map(|number| file(format!("f{number}"), format!("{number:03}")));
        let Some(fixture) = Fixture::with(Reach::Detached, Arc::new(Together(all)), files) else { return };
        let mountpoint = fixture.spec.mountpoint.clone();
        let live = fixture.maker.fuse(&fixture.spec, &opened(&mountpoint)).unwrap();
        let read = |number: usize| {
            let path = mountpoint.join(format!("f{number}"));
            std::thread::spawn(move || std::fs::read(path))
        };
        let readers: Vec<_> = (0..READERS).map(read).collect();
        let answers = readers.into_iter().map(|reader| reader.join().unwrap());
        assert_eq!(answers.filter(|answer| answer.as_ref().is_ok_and(|bytes| bytes == b"abc")).count(), READERS);
        live.unmount(true).unwrap();
    }

    #[test]
    fn a_connection_that_does_not_answer_can_be_broken_off() {
        let Some(fixture) = Fixture::new(Reach::Detached, true) else { return };
        let mountpoint = fixture.spec.mountpoint.clone();
        let live = fixture.maker.fuse(&fixture.spec, &opened(&mountpoint)).unwrap();
        let connection = fixture.maker.pool.connections().remove(0);
        let reader = std::thread::spawn(move || std::fs::read(mountpoint.join("f")));
        let timeout = std::time::Duration::from_millis(50);
        while !connection.is_wedged(timeout) {
            std::thread::yield_now();
        }
        connection.abort().unwrap();
        assert!(reader.join().unwrap().is_err());
        live.unmount(true).unwrap();
    }
}

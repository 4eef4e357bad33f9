//! [`Host`]: all mounts that one server process serves.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tarpon_fs::{Objects, Operations};
use tarpon_oci::Digest;
use tokio::runtime::Handle;

use crate::error::MountError;
use crate::holder::{ConnectionHolder, Inheritance, NoHolder};
use crate::make::Maker;
use crate::mounted::{KernelMount, LiveMounts, Mounted};
use crate::mountpoint::Mountpoint;
use crate::overlay::{self, Reach};
use crate::pool::ConnectionPool;
use crate::protected::Protected;
use crate::spec::{Mode, ModeChoice, MountSpec, Writable};
use crate::table;
use crate::{mountpoint, watchdog};

/// Mounts images for one store and watches the mounts. One per process.
///
/// Native mounts of the same objects share one FUSE connection for objects that are not local; each mount in mode `fuse`
/// has its own.
pub struct Host {
    maker: Maker,
    mounts: Arc<LiveMounts>,
    pool: Arc<ConnectionPool>,
    protected: Arc<RwLock<Protected>>,
}

impl Host {
    /// Creates a host that reads from `objects` and waits for them on `runtime`. `scratch` is a private directory on the
    /// disk of the store (its `run/`); leftovers of a killed predecessor are removed. Its connections end with this process.
    pub fn new(objects: Arc<dyn Objects>, runtime: Handle, scratch: PathBuf) -> Result<Self, MountError> {
        Self::with_holder(objects, runtime, scratch, Arc::new(NoHolder), Inheritance::default())
    }

    /// As [`Host::new`], with connections that `holder` keeps for a successor, and those of a predecessor.
    pub fn with_holder(
        objects: Arc<dyn Objects>,
        runtime: Handle,
        scratch: PathBuf,
        holder: Arc<dyn ConnectionHolder>,
        inheritance: Inheritance,
    ) -> Result<Self, MountError> {
        let doing = format!("create {}", scratch.display());
        std::fs::create_dir_all(&scratch).map_err(MountError::io(doing.clone()))?;
        let scratch = scratch.canonicalize().map_err(MountError::io(doing))?;
        overlay::sweep(&scratch);
        let (mounts, pool) = (Arc::<LiveMounts>::default(), Arc::new(ConnectionPool::inheriting(inheritance)));
        pool.uppers().sweep(&scratch);
        watchdog::start(mounts.clone(), &pool)?;
        let protected = Protected { reachable: vec![scratch.clone()], closed: Vec::new() };
        let protected = Arc::new(RwLock::new(protected));
        let maker = Maker::new(objects, runtime, scratch, Reach::of_this_kernel(), pool.clone(), holder);
        Ok(Self { maker, mounts, pool, protected })
    }

    /// Records the folder of the store in the table of mounts, so that unmounting tools find it.
    pub fn of_store(mut self, store: &Path) -> Self {
        self.maker.name_store(store);
        self
    }

    /// A host of other objects that shares this host's mounts: queries about mounts give the same answer on both.
    pub fn beside(&self, objects: Arc<dyn Objects>) -> Self {
        let maker = self.maker.beside(objects, self.pool.next_number());
        Self { maker, mounts: self.mounts.clone(), pool: self.pool.clone(), protected: self.protected.clone() }
    }

    /// Protects these paths: no later mount may hide or change them.
    pub fn protect(&self, more: Protected) {
        let mut protected = self.protected.write();
        protected.reachable.extend(more.reachable);
        protected.closed.extend(more.closed);
    }

    /// Removes temporary uppers of a killed predecessor that no mount uses any more; those of its mounts were still in
    /// use when this host was created.
    pub fn sweep(&self) {
        self.pool.uppers().sweep(self.maker.scratch());
    }

    /// Checks which mounts have ended, without waiting for a notification of the kernel.
    pub fn detect_unmounts(&self) -> Result<(), MountError> {
        self.mounts.detect_unmounts(table::mounts).map_err(MountError::io("read the table of mounts"))
    }

    /// Mounts an image. Blocks for some milliseconds; never waits for the network.
    pub fn mount(&self, spec: &MountSpec) -> Result<Mounted, MountError> {
        let protected = self.protected.read().clone();
        let mountpoint = mountpoint::prepare(&spec.mountpoint, &protected)?;
        check_upper(&spec.writable, &protected)?;
        // The kernel may reuse the number of an ended mount for the new one.
        self.detect_unmounts()?;
        match spec.mode {
            ModeChoice::Only(mode) => self.mount_as(mode, None, spec, &mountpoint),
            ModeChoice::Auto => match self.mount_as(Mode::Native, None, spec, &mountpoint) {
                Err(MountError::Unsupported { reason, .. }) => {
                    self.mount_as(Mode::Fuse, Some(reason), spec, &mountpoint)
                }
                other => other,
            },
        }
    }

    /// Whether [`Host::adopt`] is likely to succeed.
    pub fn can_adopt(&self, was: &KernelMount) -> bool {
        self.maker.can_adopt(was)
    }

    /// Serves a mount that a dead server left, without a change for its users. All images of that server must be among the
    /// objects by now: requests arrive at once. `None`: the mount is gone, or its connection was not kept.
    pub fn adopt(&self, spec: &MountSpec, was: &KernelMount) -> Result<Option<Mounted>, MountError> {
        let Some(live) = self.maker.adopt(spec, was)?.map(Arc::new) else { return Ok(None) };
        self.mounts.add(&live);
        Ok(Some(Mounted::new(live, was.mode, None)))
    }

    /// As [`Host::adopt`], for a mount of [`Host::mount_files`].
    pub fn adopt_files(&self, files: Arc<dyn Operations>, mountpoint: &Path) -> Result<Option<Mounted>, MountError> {
        let Some(live) = self.maker.adopt_files(files, mountpoint)?.map(Arc::new) else { return Ok(None) };
        self.mounts.add(&live);
        Ok(Some(Mounted::new(live, Mode::Fuse, None)))
    }

    /// Ends the connections of a dead server that were not adopted: their readers get an error.
    pub fn end_inheritance(&self) {
        self.pool.inheritance().close();
    }

    /// Ends the connections of a mount that a dead server left, unless they are served: a thread of that server may keep them alive while it
    /// waits for an answer.
    pub fn end_left(&self, mountpoint: &Path, was: &KernelMount) {
        self.maker.end_left(mountpoint, was);
    }

    /// Puts nothing into the kernel's page cache any more: a thread that waits for the kernel would delay the end of this process. `false`:
    /// some is being put there for longer than `limit`.
    pub fn stop_page_in(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.pool.connections().iter().all(|connection| connection.stop_page_in(until))
    }

    /// Mounts a file system of the caller at `mountpoint`, with the objects of this host. The mount is read-only, unless
    /// the file system gives attempts to change something a meaning. Needs root.
    pub fn mount_files(&self, files: Arc<dyn Operations>, mountpoint: &Path) -> Result<Mounted, MountError> {
        let mountpoint = mountpoint::prepare(mountpoint, &self.protected.read())?;
        self.detect_unmounts()?;
        let live = Arc::new(self.maker.files(files, &mountpoint)?);
        self.mounts.add(&live);
        Ok(Mounted::new(live, Mode::Fuse, None))
    }

    /// Drops the kernel's unused cached names of those mounts that are `concerned`, and of what native mounts share. A
    /// file opened later is looked up in the current store. A name in use keeps its file, also for later opens.
    pub fn forget_names(&self, concerned: impl Fn(&Path) -> bool) {
        for live in self.mounts.live().iter().filter(|live| concerned(live.mountpoint())) {
            if let Err(error) = live.forget_unused() {
                tracing::warn!(path = %live.mountpoint().display(), %error, "the kernel keeps cached names of a mount");
            }
        }
        for error in self.pool.shared().iter().filter_map(|shared| shared.forget_unused().err()) {
            tracing::warn!(%error, "the kernel keeps cached names of the objects that native mounts share");
        }
    }

    /// Drops all pages of these objects that the kernel cached through FUSE. Walks the trees of all mounts in mode
    /// `fuse`. A file passed through to a local one keeps its pages. `false`: on some connection the kernel was still taking pages
    /// after `limit`. The next call, with any objects, makes up for it there.
    pub fn forget_pages(&self, objects: &HashSet<Digest>, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut all = true;
        for connection in self.pool.connections() {
            all &= connection.forget_pages(objects, until);
        }
        all
    }

    /// Waits until the kernel uses no mounted file system any more, including those unmounted while in use. After that a
    /// server can exit without failing any reader. From this call until the next native mount, the shared connection is
    /// not kept for further mounts.
    pub async fn drained(&self) {
        self.pool.release();
        while let Some(connection) = self.pool.connections().into_iter().next() {
            // An error means that the thread has ended, which ends the connection too.
            let mut ended = connection.ended();
            let _ended = ended.wait_for(|ended| *ended).await;
        }
        self.pool.tidy();
    }

    /// Whether no mount is in use.
    pub fn is_drained(&self) -> bool {
        self.pool.connections().is_empty()
    }

    /// Unmounts everything and waits at most `timeout` for running requests. For SIGTERM.
    pub async fn shut_down(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        self.pool.release();
        for live in self.mounts.live() {
            match live.unmount(true) {
                Ok(how) => tracing::info!(path = %live.mountpoint().display(), ?how, "unmounted"),
                Err(error) => tracing::warn!(%error, "not unmounted"),
            }
        }
        let answered = async {
            while self.pool.connections().iter().any(|connection| connection.in_flight().len() > 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _late = tokio::time::timeout(until.saturating_duration_since(Instant::now()), answered).await;
        self.pool.tidy();
    }

    fn mount_as(
        &self,
        mode: Mode,
        fallback_reason: Option<String>,
        spec: &MountSpec,
        mountpoint: &Mountpoint,
    ) -> Result<Mounted, MountError> {
        let live = Arc::new(match mode {
            Mode::Native => self.maker.native(spec, mountpoint)?,
            Mode::Fuse => self.maker.fuse(spec, mountpoint)?,
        });
        self.mounts.add(&live);
        Ok(Mounted::new(live, mode, fallback_reason))
    }
}

/// Checks the upper directory: writes to the mount go there, so it must not be a directory of the host. A missing
/// directory passes.
fn check_upper(writable: &Writable, protected: &Protected) -> Result<(), MountError> {
    match writable {
        Writable::Upper(path) | Writable::Discarded(path) if path.exists() => {
            protected.check(path).map_err(|problem| MountError::Upper { path: path.clone(), problem })
        }
        _ => Ok(()),
    }
}

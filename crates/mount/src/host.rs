//! [`Host`]: all mounts that one server process serves.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tarpon_fs::{Objects, Operations};
use tarpon_oci::Digest;
use tokio::runtime::Handle;

use crate::connection::Connection;
use crate::error::MountError;
use crate::make::{LazyObjects, Maker};
use crate::mounted::{Live, Mounted};
use crate::mountpoint::Mountpoint;
use crate::overlay::{self, Reach};
use crate::protected::Protected;
use crate::spec::{Mode, ModeChoice, MountSpec, Writable};
use crate::table::{self, TableEntry};
use crate::upper::{Upper, Uppers};
use crate::{mountpoint, watchdog};

/// Mounts images for one store and watches the mounts. One per process.
///
/// Native mounts of the same objects share one FUSE connection for objects that are not local; each mount in mode `fuse`
/// has its own.
pub struct Host {
    maker: Maker,
    roll: Arc<Roll>,
    protected: Arc<RwLock<Protected>>,
}

/// All mounts, and the connections that the kernel still uses.
#[derive(Default)]
pub(crate) struct Roll {
    live: Mutex<Vec<Weak<Live>>>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Uppers of ended mounts, each with the connection until whose end the upper may still be in use.
    left: Mutex<Vec<(Arc<Connection>, Upper)>>,
    uppers: Arc<Uppers>,
    /// What native mounts share while at least one of them exists, by the number of their objects.
    shared: Mutex<HashMap<u64, Weak<LazyObjects>>>,
    /// The same, kept for the next mount after the last one ended: making a connection costs more than making a mount.
    kept: Mutex<HashMap<u64, Arc<LazyObjects>>>,
    /// Number of object sets besides the first.
    beside: AtomicU64,
}

impl Host {
    /// Creates a host that reads from `objects` and waits for them on `runtime`. `scratch` is a private directory on the
    /// disk of the store (its `run/`); leftovers of a killed predecessor are removed.
    pub fn new(objects: Arc<dyn Objects>, runtime: Handle, scratch: PathBuf) -> Result<Self, MountError> {
        let doing = format!("create {}", scratch.display());
        std::fs::create_dir_all(&scratch).map_err(MountError::io(doing.clone()))?;
        let scratch = scratch.canonicalize().map_err(MountError::io(doing))?;
        overlay::sweep(&scratch);
        let roll = Arc::<Roll>::default();
        roll.uppers.sweep(&scratch);
        watchdog::start(&roll)?;
        let protected = Protected { reachable: vec![scratch.clone()], closed: Vec::new() };
        let protected = Arc::new(RwLock::new(protected));
        let maker = Maker::new(objects, runtime, scratch, Reach::of_this_kernel(), roll.clone());
        Ok(Self { maker, roll, protected })
    }

    /// Records the folder of the store in the table of mounts, so that unmounting tools find it.
    pub fn of_store(mut self, store: &Path) -> Self {
        self.maker.name_store(store);
        self
    }

    /// A host of other objects that shares this host's mounts: queries about mounts give the same answer on both.
    pub fn beside(&self, objects: Arc<dyn Objects>) -> Self {
        let number = self.roll.beside.fetch_add(1, Ordering::Relaxed) + 1;
        let maker = self.maker.beside(objects, number);
        Self { maker, roll: self.roll.clone(), protected: self.protected.clone() }
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
        self.roll.uppers.sweep(self.maker.scratch());
    }

    /// Checks which mounts have ended, without waiting for a notification of the kernel.
    pub fn look_around(&self) -> Result<(), MountError> {
        self.roll.look_around(table::mounts).map_err(MountError::io("read the table of mounts"))
    }

    /// Mounts an image. Blocks for some milliseconds; never waits for the network.
    pub fn mount(&self, spec: &MountSpec) -> Result<Mounted, MountError> {
        let protected = self.protected.read().clone();
        let mountpoint = mountpoint::prepare(&spec.mountpoint, &protected)?;
        check_upper(&spec.writable, &protected)?;
        // The kernel may reuse the number of an ended mount for the new one.
        self.look_around()?;
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

    /// Mounts a file system of the caller at `mountpoint`, with the objects of this host. The mount is read-only, unless
    /// the file system gives attempts to change something a meaning. Needs root.
    pub fn mount_files(&self, files: Arc<dyn Operations>, mountpoint: &Path) -> Result<Mounted, MountError> {
        let mountpoint = mountpoint::prepare(mountpoint, &self.protected.read())?;
        self.look_around()?;
        let live = Arc::new(self.maker.files(files, &mountpoint)?);
        self.roll.live.lock().push(Arc::downgrade(&live));
        Ok(Mounted::new(live, Mode::Fuse, None))
    }

    /// Drops the kernel's unused cached names of those mounts that are `concerned`, and of what native mounts share. A
    /// file opened later is looked up in the current store. A name in use keeps its file, also for later opens.
    pub fn forget_names(&self, concerned: impl Fn(&Path) -> bool) {
        for live in self.roll.live().iter().filter(|live| concerned(live.mountpoint())) {
            if let Err(error) = live.forget_unused() {
                tracing::warn!(path = %live.mountpoint().display(), %error, "the kernel keeps what it remembers of a mount");
            }
        }
        let shared: Vec<_> = self.roll.shared.lock().values().filter_map(Weak::upgrade).collect();
        for error in shared.iter().filter_map(|shared| shared.forget_unused().err()) {
            tracing::warn!(%error, "the kernel keeps what it remembers of the objects that native mounts share");
        }
    }

    /// Drops all pages of these objects that the kernel cached through FUSE. Walks the trees of all mounts in mode
    /// `fuse`. A file passed through to a local one keeps its pages.
    pub fn forget_pages(&self, objects: &HashSet<Digest>) {
        self.roll.connections().iter().for_each(|connection| connection.forget_pages(objects));
    }

    /// Waits until the kernel uses no mounted file system any more, including those unmounted while in use. After that a
    /// server can exit without failing any reader. From this call until the next native mount, the shared connection is
    /// not kept for further mounts.
    pub async fn drained(&self) {
        self.roll.let_go();
        while let Some(connection) = self.roll.connections().into_iter().next() {
            // An error means that the thread has ended, which ends the connection too.
            let mut ended = connection.ended();
            let _ended = ended.wait_for(|ended| *ended).await;
        }
        self.roll.tidy();
    }

    /// Whether no mount is in use.
    pub fn is_drained(&self) -> bool {
        self.roll.connections().is_empty()
    }

    /// Unmounts everything and waits at most `patience` for running requests. For SIGTERM.
    pub async fn shut_down(&self, patience: Duration) {
        let until = Instant::now() + patience;
        self.roll.let_go();
        for live in self.roll.live() {
            match live.unmount(true) {
                Ok(how) => tracing::info!(path = %live.mountpoint().display(), ?how, "unmounted"),
                Err(error) => tracing::warn!(%error, "not unmounted"),
            }
        }
        let answered = async {
            while self.roll.connections().iter().any(|connection| connection.in_flight().len() > 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _late = tokio::time::timeout(until.saturating_duration_since(Instant::now()), answered).await;
        self.roll.tidy();
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
        self.roll.live.lock().push(Arc::downgrade(&live));
        Ok(Mounted::new(live, mode, fallback_reason))
    }
}

/// Checks the upper directory: writes to the mount go there, so it must not be a directory of the host. A missing
/// directory passes.
fn check_upper(writable: &Writable, protected: &Protected) -> Result<(), MountError> {
    match writable {
        Writable::Upper(path) if path.exists() => {
            protected.check(path).map_err(|problem| MountError::Upper { path: path.clone(), problem })
        }
        _ => Ok(()),
    }
}

impl Roll {
    /// The mounts that are still referenced.
    pub(crate) fn live(&self) -> Vec<Arc<Live>> {
        let mut live = self.live.lock();
        live.retain(|live| live.strong_count() > 0);
        live.iter().filter_map(Weak::upgrade).collect()
    }

    /// Detects mounts that have ended.
    pub(crate) fn look_around(&self, read: impl FnOnce() -> io::Result<Vec<TableEntry>>) -> io::Result<()> {
        // Before the table is read: a mount made after that would appear to have ended.
        let live = self.live();
        let table = read()?;
        live.iter().for_each(|live| live.look(&table));
        Ok(())
    }

    /// The connections that have not ended.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| !*connection.ended().borrow());
        connections.clone()
    }

    /// Returns the shared state for the next native mount: the existing one while it `serves`, else a new one.
    pub(crate) fn share<E>(
        &self,
        number: u64,
        serves: impl FnOnce(&LazyObjects) -> bool,
        make: impl FnOnce() -> Result<Arc<LazyObjects>, E>,
    ) -> Result<Arc<LazyObjects>, E> {
        let mut shared = self.shared.lock();
        let lazy = match shared.get(&number).and_then(Weak::upgrade).filter(|lazy| serves(lazy)) {
            Some(lazy) => lazy,
            None => make()?,
        };
        shared.insert(number, Arc::downgrade(&lazy));
        let before = self.kept.lock().insert(number, lazy.clone());
        drop(shared);
        drop(before);
        Ok(lazy)
    }

    /// As [`Roll::let_go`], and no later mount shares it: its current users are being waited for.
    pub(crate) fn retire(&self) {
        let mut shared = self.shared.lock();
        shared.clear();
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(shared);
        drop(kept);
    }

    /// Stops keeping the shared state: it ends with its current mounts and users.
    pub(crate) fn let_go(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        // Not under the lock: this may unmount.
        drop(kept);
    }

    /// The upper directories in use.
    pub(crate) fn uppers(&self) -> &Arc<Uppers> {
        &self.uppers
    }

    /// Registers `upper` for removal after `connection` has ended.
    pub(crate) fn clean_up_later(&self, connection: Arc<Connection>, upper: Upper) {
        self.left.lock().push((connection, upper));
    }

    /// Cleans up after the connections that have ended.
    pub(crate) fn tidy(&self) {
        let is_over = |(connection, _): &mut (Arc<Connection>, Upper)| *connection.ended().borrow();
        // Held until everything is removed, so that removal is complete on return even with concurrent callers.
        let mut left = self.left.lock();
        left.extract_if(.., is_over).for_each(|(_, upper)| upper.clean_up());
    }

    pub(crate) fn add_connection(&self, connection: Arc<Connection>) {
        self.connections.lock().push(connection);
    }
}

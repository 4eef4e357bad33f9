//! [`Mounted`]: one mounted image, until its unmount.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::adapter::Counters;
use crate::connection::Connection;
use crate::error::MountError;
use crate::in_use::bound_elsewhere;
use crate::kernel;
use crate::mountpoint;
use crate::place::Spot;
use crate::pool::{ConnectionPool, LazyObjects};
use crate::spec::Mode;
use crate::table::{self, TableEntry};
use crate::upper::{SavedUpper, Upper};

/// Outcome of an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmounted {
    /// The mount was unused.
    Clean,
    /// The mount was in use: the path is free, its users continue until they close their files, and the server should
    /// serve them until then ([`Mounted::unused`], [`crate::Host::drained`]).
    Lazy,
    /// The mount was already gone.
    Already,
}

/// A mounted image. Dropping it unmounts.
pub struct Mounted {
    live: Arc<Live>,
    mode: Mode,
    fallback_reason: Option<String>,
}

/// A mount as the kernel knows it, for the process that serves it after this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMount {
    /// How it presents the image.
    pub mode: Mode,
    /// Number of the FUSE connection that it reads from.
    pub(crate) connection: u32,
    /// Number of the FUSE connection with the metadata of a mount in mode `native`, if that is not EROFS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tree: Option<u32>,
    /// Id in the table of mounts.
    pub(crate) id: u64,
    /// The unique id, on kernels that have such ids.
    pub(crate) unique: Option<u64>,
    /// The directory that receives its writes.
    pub(crate) upper: Option<SavedUpper>,
}

/// The mount itself, as watched by the host.
pub(crate) struct Live {
    mountpoint: PathBuf,
    id: u64,
    /// The mount's unique id, on kernels that have such ids.
    unique: Option<u64>,
    connection: Arc<Connection>,
    tree: Option<u32>,
    pool: Arc<ConnectionPool>,
    /// Resources released with the mount; `None` afterwards. The holder of the lock decides about the mount.
    rest: Mutex<Option<Rest>>,
    /// Notifies waiters of the mount's fate. Changes once.
    fate: watch::Sender<Fate>,
}

/// The mounts of one server.
#[derive(Default)]
pub(crate) struct LiveMounts(Mutex<Vec<Weak<Live>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Mounted,
    /// It left its path. `unused`: it cannot be in use any more.
    Gone {
        unused: bool,
    },
}

struct Rest {
    _lazy: Option<Arc<LazyObjects>>,
    upper: Option<Upper>,
}

/// Parts of a mount.
pub(crate) struct Parts {
    pub(crate) unique: Option<u64>,
    pub(crate) connection: Arc<Connection>,
    /// As in [`KernelMount`].
    pub(crate) tree: Option<u32>,
    pub(crate) lazy: Option<Arc<LazyObjects>>,
    pub(crate) upper: Option<Upper>,
}

impl Mounted {
    pub(crate) fn new(live: Arc<Live>, mode: Mode, fallback_reason: Option<String>) -> Self {
        Self { live, mode, fallback_reason }
    }

    /// The mode of the mount.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the preferred mode was not used, in one line.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// The mount point: absolute, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.live.mountpoint()
    }

    /// The mount as the kernel knows it. `None`: its connection has no number, or it has ended.
    pub fn kernel_mount(&self) -> Option<KernelMount> {
        let Live { id, unique, tree, ref connection, ref rest, .. } = *self.live;
        let upper = rest.lock().as_ref()?.upper.as_ref().map(Upper::saved);
        Some(KernelMount { mode: self.mode, connection: connection.number()?, tree, id, unique, upper })
    }

    /// Counters of the served requests; all native mounts of a host share them.
    pub fn counters(&self) -> &Counters {
        self.live.connection.counters()
    }

    /// Disables the kernel's read-ahead from now on: see [`MountSpec::read_ahead`](crate::MountSpec::read_ahead).
    pub fn stop_read_ahead(&self) {
        self.live.connection.stop_read_ahead();
    }

    /// Whether the mount is still at its place.
    pub fn is_attached(&self) -> bool {
        *self.live.fate.borrow() == Fate::Mounted
    }

    /// Unmounts; lazily if it is in use.
    pub fn unmount(&self) -> Result<Unmounted, MountError> {
        self.live.unmount(true)
    }

    /// Unmounts unless it is in use.
    ///
    /// # Errors
    /// [`MountError::Busy`] if it is in use, [`MountError::Bound`] if it is mounted elsewhere as well.
    pub fn unmount_unused(&self) -> Result<Unmounted, MountError> {
        let doing = MountError::io("read the tables of mounts to find users of the mount");
        let here = self.mountpoint().to_owned();
        if self.is_attached()
            && let Some((path, at)) = bound_elsewhere(&[here]).map_err(doing)?.into_iter().next()
        {
            return Err(MountError::Bound { path, at });
        }
        self.live.unmount(false)
    }

    /// Whether [`Mounted::unmount_unused`] would fail now because the mount is in use. A layer of an overlay and a bind
    /// mount do not count: see [`below_overlays`](crate::below_overlays) and [`bound_elsewhere`].
    pub fn is_busy(&self) -> bool {
        self.is_attached() && Spot::open(self.mountpoint()).is_ok_and(|spot| spot.is_busy())
    }

    /// Waits until the image is unmounted, by this process or another. Open files stay usable: see [`Mounted::unused`].
    pub async fn wait(&self) {
        self.live.left().await;
    }

    /// Waits until the image is unmounted and cannot be in use any more: its image must be served until then. After a
    /// lazy unmount that is the end of its FUSE connection; native mounts share one, which ends with the last of them.
    pub async fn unused(&self) {
        if self.live.left().await == (Fate::Gone { unused: false }) {
            let mut ended = self.live.connection.ended();
            // An error means that the thread has ended, which ends the connection too.
            let _ended = ended.wait_for(|ended| *ended).await;
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "not unmounted");
        }
    }
}

impl Live {
    pub(crate) fn new(mountpoint: PathBuf, id: u64, pool: Arc<ConnectionPool>, parts: Parts) -> Self {
        let Parts { unique, connection, tree, lazy, upper } = parts;
        let rest = Mutex::new(Some(Rest { _lazy: lazy, upper }));
        Self { mountpoint, id, unique, connection, tree, pool, rest, fate: watch::Sender::new(Fate::Mounted) }
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts; with `lazily`, also while in use.
    pub(crate) fn unmount(&self, lazily: bool) -> Result<Unmounted, MountError> {
        // Held throughout, so that two callers do not unmount the mount below.
        let mut rest = self.rest.lock();
        if rest.is_none() {
            return Ok(Unmounted::Already);
        }
        if self.unmount_unused()? {
            self.release(&mut rest, true);
            return Ok(Unmounted::Clean);
        }
        let table = table::mounts().map_err(MountError::io("read the table of mounts to find users of the mount"))?;
        let Some(entry) = self.find(&table) else {
            self.release(&mut rest, false);
            return Ok(Unmounted::Already);
        };
        // The kernel unmounts by path, the topmost mount there. A lazy unmount also takes all mounts inside this one.
        if let Some(above) = table::above(&table, entry) {
            return Err(MountError::covered(entry, above));
        }
        let how = match mountpoint::remove_unused(&entry.mountpoint) {
            Ok(()) => Unmounted::Clean,
            Err(error) if error.errno() == Errno::BUSY && lazily => {
                mountpoint::remove_lazily(&entry.mountpoint, |open| self.is(open))?;
                tracing::info!(path = %entry.mountpoint.display(), "in use: unmounted lazily");
                Unmounted::Lazy
            }
            Err(error) if error.errno() == Errno::BUSY => {
                return Err(MountError::Busy { path: entry.mountpoint.clone() });
            }
            Err(error) => return Err(error.into()),
        };
        self.release(&mut rest, how == Unmounted::Clean);
        Ok(how)
    }

    /// Unmounts the mount if it is at its place, unused and uncovered. That is the usual case, and it avoids reading the
    /// table of mounts, which is long on hosts with many mounts.
    fn unmount_unused(&self) -> Result<bool, MountError> {
        let there = Spot::open(&self.mountpoint).ok().and_then(|spot| spot.unique_id());
        if self.unique.is_none() || there != self.unique {
            return Ok(false);
        }
        match mountpoint::remove_unused(&self.mountpoint) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Errno::BUSY => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Drops the kernel's unused cached names of the mount.
    pub(crate) fn forget_unused(&self) -> Result<(), MountError> {
        // Held, so that the mount is not unmounted meanwhile.
        let rest = self.rest.lock();
        let doing = "look at the mount";
        let top = Spot::open(&self.mountpoint).and_then(|spot| spot.top()).map_err(MountError::io(doing))?;
        if rest.is_none() || !self.is(top.as_fd()) {
            return Ok(());
        }
        let read_only = rustix::fs::fstatvfs(&top)
            .map(|info| info.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
            .map_err(|errno| MountError::io(doing)(errno.into()))?;
        Ok(kernel::forget_unused(top.as_fd(), Path::new(""), read_only)?)
    }

    /// Whether `open` is this mount.
    fn is(&self, open: BorrowedFd<'_>) -> bool {
        match self.unique {
            Some(unique) => table::unique_id_of(open) == Some(unique),
            None => table::mount_id(open).is_ok_and(|id| id == self.id),
        }
    }

    /// Compares with the table of mounts, which reveals unmounts by other processes.
    pub(crate) fn look(&self, table: &[TableEntry]) {
        // The holder of the lock is unmounting or detecting the same. A later query must see the outcome.
        let mut rest = self.rest.lock();
        if rest.is_some() && self.find(table).is_none() {
            tracing::info!(path = %self.mountpoint.display(), "was unmounted by another process");
            self.release(&mut rest, false);
        }
    }

    /// Finds the mount in the table, also if its directory was renamed. The kernel may reuse the id of an ended mount for
    /// a new one, possibly of another server: that one is elsewhere, and our directory is unmoved.
    fn find<'t>(&self, table: &'t [TableEntry]) -> Option<&'t TableEntry> {
        let entry = table.iter().find(|entry| entry.id == self.id && entry.is_ours())?;
        (entry.mountpoint == self.mountpoint || !self.mountpoint.exists()).then_some(entry)
    }

    fn release(&self, rest: &mut Option<Rest>, unused: bool) {
        if !unused {
            // Its users continue until the shared connection ends. No later mount may delay that, so later mounts get
            // another connection.
            self.pool.retire();
        }
        if let Some(upper) = rest.take().and_then(|rest| rest.upper) {
            if unused {
                upper.clean_up();
            } else {
                self.pool.clean_up_later(self.connection.clone(), upper);
            }
        }
        self.fate.send_replace(Fate::Gone { unused });
    }

    async fn left(&self) -> Fate {
        let mut fate = self.fate.subscribe();
        // The sender lives in `self`, so the channel cannot be closed.
        fate.wait_for(|fate| *fate != Fate::Mounted).await.map_or(Fate::Gone { unused: false }, |fate| *fate)
    }
}

impl LiveMounts {
    pub(crate) fn add(&self, live: &Arc<Live>) {
        self.0.lock().push(Arc::downgrade(live));
    }

    /// The mounts that are still referenced.
    pub(crate) fn live(&self) -> Vec<Arc<Live>> {
        let mut live = self.0.lock();
        live.retain(|live| live.strong_count() > 0);
        live.iter().filter_map(Weak::upgrade).collect()
    }

    /// Detects mounts that have ended.
    pub(crate) fn detect_unmounts(&self, read: impl FnOnce() -> io::Result<Vec<TableEntry>>) -> io::Result<()> {
        // Before the table is read: a mount made after that would appear to have ended.
        let live = self.live();
        let table = read()?;
        live.iter().for_each(|live| live.look(&table));
        Ok(())
    }
}

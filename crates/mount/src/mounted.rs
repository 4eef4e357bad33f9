//! [`Mounted`]: one image that is mounted, until it is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::watch;

use crate::adapter::Counters;
use crate::connection::Connection;
use crate::error::MountError;
use crate::make::LazyObjects;
use crate::mountpoint;
use crate::spec::Mode;
use crate::table::TableEntry;
use crate::upper::Upper;

/// How an unmount went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used it.
    Clean,
    /// Somebody used it: the path is free, the users go on until they close what they have open, and the server
    /// should serve them that long ([`Mounted::unused`], [`crate::Host::drained`]).
    Lazy,
    /// It was gone already.
    Already,
}

/// An image that was mounted. Dropping it unmounts.
pub struct Mounted {
    live: Arc<Live>,
    mode: Mode,
    fallback_reason: Option<String>,
}

/// The mount itself, as the host watches it.
pub(crate) struct Live {
    mountpoint: PathBuf,
    id: u64,
    connection: Arc<Connection>,
    attached: watch::Sender<bool>,
    /// Nobody was using it when it was unmounted.
    left_clean: AtomicBool,
    /// Given back when the mount is gone.
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    lazy: Option<Arc<LazyObjects>>,
    upper: Option<Upper>,
}

/// What a mount is made of.
pub(crate) struct Parts {
    pub(crate) connection: Arc<Connection>,
    pub(crate) lazy: Option<Arc<LazyObjects>>,
    pub(crate) upper: Option<Upper>,
}

impl Mounted {
    pub(crate) fn new(live: Arc<Live>, mode: Mode, fallback_reason: Option<String>) -> Self {
        Self { live, mode, fallback_reason }
    }

    /// How it is mounted.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it is not mounted in the preferred mode, in one line.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Where: absolute, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.live.mountpoint()
    }

    /// What was served; all native mounts of a host share these figures.
    pub fn counters(&self) -> &Counters {
        self.live.connection.counters()
    }

    /// Whether the mount is still where it was put.
    pub fn is_attached(&self) -> bool {
        *self.live.attached.borrow()
    }

    /// Unmounts; lazily if it is in use.
    pub fn unmount(&self) -> Result<Unmounted, MountError> {
        self.live.unmount()
    }

    /// Waits until it is unmounted, by whomever. Who still has files open goes on: see [`Mounted::unused`].
    pub async fn wait(&self) {
        let mut attached = self.live.attached.subscribe();
        // The sender lives in `self`, so the channel cannot be closed.
        let _detached = attached.wait_for(|attached| !*attached).await;
    }

    /// Waits until it is unmounted and nobody can be using it any more: its image must be served that long. After a lazy
    /// unmount that is the end of its FUSE connection; native mounts share one, which ends with the last of them.
    pub async fn unused(&self) {
        self.wait().await;
        if !self.live.left_clean.load(Ordering::Acquire) {
            let mut ended = self.live.connection.ended();
            // An error means that its thread is gone, which is an end too.
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
    pub(crate) fn new(mountpoint: PathBuf, id: u64, parts: Parts) -> Self {
        let Parts { connection, lazy, upper } = parts;
        let rest = Mutex::new(Rest { lazy, upper });
        let left_clean = AtomicBool::new(false);
        Self { mountpoint, id, connection, attached: watch::Sender::new(true), left_clean, rest }
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(crate) fn unmount(&self) -> Result<Unmounted, MountError> {
        // Held throughout, so that two callers do not unmount what lies below.
        let mut rest = self.rest.lock();
        let table = crate::table::mounts().map_err(MountError::io("read the table of mounts"))?;
        let Some(entry) = self.find(&table) else {
            self.attached.send_replace(false);
            rest.let_go(false);
            return Ok(Unmounted::Already);
        };
        let how = match mountpoint::remove(&entry.mountpoint, false) {
            Ok(()) => {
                self.left_clean.store(true, Ordering::Release);
                Unmounted::Clean
            }
            Err(error) if error.errno() == Errno::BUSY => {
                mountpoint::remove(&entry.mountpoint, true)?;
                tracing::info!(path = %entry.mountpoint.display(), "in use: unmounted lazily");
                Unmounted::Lazy
            }
            Err(error) => return Err(error.into()),
        };
        self.attached.send_replace(false);
        rest.let_go(how == Unmounted::Clean);
        Ok(how)
    }

    /// The mount in the table, also if its directory was renamed.
    fn find<'t>(&self, table: &'t [TableEntry]) -> Option<&'t TableEntry> {
        table.iter().find(|entry| entry.id == self.id && entry.is_ours() && *self.attached.borrow())
    }

    /// Compares with the table of mounts; returns whether the mount has just been found gone. What is gone stays gone,
    /// whoever has its number next.
    pub(crate) fn look(&self, table: &[TableEntry]) -> bool {
        let here = self.find(table).is_some();
        self.attached.send_if_modified(|attached| {
            let just_gone = *attached && !here;
            *attached &= here;
            just_gone
        })
    }

    /// Somebody else unmounted it.
    pub(crate) fn was_removed(&self) {
        tracing::info!(path = %self.mountpoint.display(), "was unmounted by somebody else");
        self.rest.lock().let_go(false);
    }
}

impl Rest {
    /// The upper may only be removed if nobody can still be using it; otherwise the next start sweeps it.
    fn let_go(&mut self, unused: bool) {
        self.lazy = None;
        if let Some(upper) = self.upper.take().filter(|_| unused) {
            upper.clean_up();
        }
    }
}

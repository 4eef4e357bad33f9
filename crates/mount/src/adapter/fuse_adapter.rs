//! [`Adapter`]: a file system in the form that fuser requires.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{FopenFlags, InitFlags, KernelConfig};
use tarpon_fs::{Errno, NodeId, Operations, Reads};
use tokio::runtime::Handle;

use super::guarded::{Counters, GuardedFiles};
use super::in_flight::InFlight;
use super::opens::Opens;
use super::page_in::PageIn;
use super::reply::Refuse;

/// Largest request. The kernel allows no more without a sysctl.
const REQUEST_BYTES: u32 = 1 << 20;
/// Maximum number of background (read-ahead) requests that the kernel may have outstanding. Requests beyond the limit
/// wait in the kernel, where none of our deadlines covers them. Each costs the server a task until its answer, and there
/// are no more of them than readers.
const BACKGROUND_REQUESTS: u16 = 16_384;
/// On top of a FUSE file system with this depth, one overlayfs still fits; its backing files must be on a plain disk.
const STACK_DEPTH: u32 = 1;

/// Capabilities of the kernel that a test hides from this process.
#[cfg(test)]
pub(crate) static HIDDEN: AtomicU64 = AtomicU64::new(0);

/// How files are opened.
pub(crate) enum OpenPolicy {
    /// The kernel does not send opens at all: cheapest.
    NoOpen,
    /// Complete local files are passed through to the kernel where it supports that. These are open already.
    PassThrough(Opens),
}

/// A file system in the form that fuser requires.
pub(crate) struct Adapter {
    pub(super) guarded: GuardedFiles,
    pub(super) reads: Reads,
    pub(super) runtime: Handle,
    pub(super) opens: Option<Arc<Opens>>,
    pub(super) in_flight: InFlight,
    pub(super) offered: Arc<AtomicU64>,
    pub(super) reads_ahead: bool,
    pub(super) page_in: Arc<PageIn>,
}

impl Adapter {
    pub(crate) fn new(files: Arc<dyn Operations>, reads: Reads, runtime: Handle, policy: OpenPolicy) -> Self {
        let opens = match policy {
            OpenPolicy::NoOpen => None,
            OpenPolicy::PassThrough(opens) => Some(Arc::new(opens)),
        };
        Self {
            guarded: GuardedFiles { files, counters: Arc::default() },
            page_in: Arc::new(PageIn::new(reads.clone())),
            reads,
            runtime,
            opens,
            in_flight: InFlight::default(),
            offered: Arc::default(),
            reads_ahead: true,
        }
    }

    /// Disables read-ahead: the kernel requests only what a reader reads.
    pub(crate) fn without_read_ahead(self) -> Self {
        Self { reads_ahead: false, ..self }
    }

    pub(crate) fn reads_ahead(&self) -> bool {
        self.reads_ahead
    }

    pub(crate) fn page_in(&self) -> Arc<PageIn> {
        self.page_in.clone()
    }

    pub(crate) fn files(&self) -> Arc<dyn Operations> {
        self.guarded.files.clone()
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        self.in_flight.clone()
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.guarded.counters.clone()
    }

    /// Whether the kernel must forward attempts to change something.
    pub(crate) fn forwards_changes(&self) -> bool {
        self.guarded.files.forwards_changes()
    }

    /// The open files, if the kernel sends opens.
    pub(crate) fn opens(&self) -> Option<Arc<Opens>> {
        self.opens.clone()
    }

    /// The bits of the capabilities that the kernel offered, once it did.
    pub(crate) fn offered(&self) -> Arc<AtomicU64> {
        self.offered.clone()
    }

    /// Runs the operation and replies on this thread.
    pub(super) fn answer<R: Refuse, T>(
        &self,
        reply: R,
        ask: impl FnOnce(&dyn Operations) -> Result<T, Errno>,
        give: impl FnOnce(R, T),
    ) {
        let _request = self.in_flight.begin();
        self.guarded.answer(reply, ask, give);
    }

    /// As [`GuardedFiles::guarded`].
    pub(super) fn guarded<T>(&self, operation: impl FnOnce(&dyn Operations) -> T) -> Result<T, Errno> {
        self.guarded.guarded(operation)
    }

    /// As [`GuardedFiles::presence_lasts`].
    pub(super) fn presence_lasts(&self, node: NodeId) -> Duration {
        self.guarded.presence_lasts(node)
    }

    pub(super) fn wanted_capabilities(&self) -> InitFlags {
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_ALLOW_IDMAP;
        if self.guarded.files.finds_by_number() {
            wanted |= InitFlags::FUSE_EXPORT_SUPPORT;
        }
        if !self.guarded.files.lists_change() {
            wanted |= InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        }
        wanted |= match self.opens {
            None => InitFlags::FUSE_NO_OPEN_SUPPORT,
            Some(_) => InitFlags::FUSE_PASSTHROUGH,
        };
        if self.guarded.files.has_access_lists() {
            // Access lists are enforced as in mode native; it costs one request per inode.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        wanted
    }

    /// Requests those wanted features that the kernel offers; each of them is only an optimization.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) {
        let offered = config.capabilities();
        #[cfg(test)]
        let offered = offered - InitFlags::from_bits_retain(HIDDEN.load(Ordering::Relaxed));
        self.offered.store(offered.bits(), Ordering::Relaxed);
        let available = self.wanted_capabilities() & config.capabilities();
        let granted = config.add_capabilities(available);
        debug_assert!(granted.is_ok(), "only offered capabilities were asked for");
        if available.contains(InitFlags::FUSE_PASSTHROUGH) {
            let _previous = config.set_max_stack_depth(STACK_DEPTH);
        }
        if !self.reads_ahead {
            // Less than a page; the library does not accept 0.
            let _previous = config.set_max_readahead(1);
        }
        let _previous = config.set_max_write(REQUEST_BYTES);
        let _previous = config.set_max_background(BACKGROUND_REQUESTS);
    }
}

/// Flags of an open through the page cache: cached pages stay valid, and closes are not forwarded.
pub(super) fn cached_open() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
}

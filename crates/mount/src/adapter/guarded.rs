//! [`GuardedFiles`]: the file system, callable from any thread. A panic in it becomes an I/O error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{Generation, ReplyEntry};
use tarpon_fs::{Errno, NodeId, Operations};

use super::convert;
use super::reply::Refuse;

/// How long the kernel may cache an answer that never changes ([`Operations::lasts`]).
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Inode numbers are never reused.
pub(super) const GENERATION: Generation = Generation(0);

/// Figures of one mount, for `status`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads answered from local data.
    pub reads_local: AtomicU64,
    /// Reads that waited for a fetch.
    pub reads_fetched: AtomicU64,
    /// Reads that ended with an error.
    pub read_errors: AtomicU64,
    /// Opens that the kernel asked about.
    pub opens: AtomicU64,
    /// Operations that panicked.
    pub panics: AtomicU64,
}

/// A file system and the figures of its mount. Cheap to clone.
#[derive(Clone)]
pub(super) struct GuardedFiles {
    pub(super) files: Arc<dyn Operations>,
    pub(super) counters: Arc<Counters>,
}

impl GuardedFiles {
    /// Runs `ask` and replies with its result.
    pub(super) fn answer<R: Refuse, T>(
        &self,
        reply: R,
        ask: impl FnOnce(&dyn Operations) -> Result<T, Errno>,
        give: impl FnOnce(R, T),
    ) {
        // A panic drops the reply, which answers EIO.
        let _survived = self.guarded(|files| match ask(files) {
            Ok(answer) => give(reply, answer),
            Err(errno) => reply.refuse(convert::errno(errno)),
        });
    }

    /// Runs `operation` and turns a panic in it into an I/O error.
    pub(super) fn guarded<T>(&self, operation: impl FnOnce(&dyn Operations) -> T) -> Result<T, Errno> {
        catch_unwind(AssertUnwindSafe(|| operation(&*self.files))).map_err(|_panic| {
            self.counters.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!("an operation panicked; its caller gets EIO");
            Errno::Io
        })
    }

    /// Looks a name up.
    pub(super) fn lookup(&self, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        let found = |reply: ReplyEntry, attr| match attr {
            Some(attr) => reply.entry(&self.presence_lasts(parent), &convert::attributes(&attr), GENERATION),
            None => reply.entry(&self.absence_lasts(parent), &convert::nothing(), GENERATION),
        };
        self.answer(
            reply,
            |files| match files.lookup(parent, name) {
                Ok(attr) => Ok(Some(attr)),
                Err(Errno::NotFound) => Ok(None),
                Err(errno) => Err(errno),
            },
            found,
        );
    }

    /// How long the kernel may cache the attributes of an inode and the names in it.
    pub(super) fn presence_lasts(&self, node: NodeId) -> Duration {
        if self.files.lasts(node) { FOR_EVER } else { Duration::ZERO }
    }

    /// How long the kernel may cache that a name does not exist in `parent`.
    fn absence_lasts(&self, parent: NodeId) -> Duration {
        if self.files.names_may_appear() { Duration::ZERO } else { self.presence_lasts(parent) }
    }
}

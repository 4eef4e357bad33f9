//! [`Opens`]: which inodes are open, and whether through the FUSE page cache or passed through to a local file.
//!
//! The kernel's rule per inode is "all or nothing": while any open is cached, none may be passed through, and vice versa.
//! All passed-through opens must use the same backing id. The mode may change while the inode is not open. A release
//! arrives after the kernel has dropped the mode, so a count of zero here means zero in the kernel.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::BackingId;
use parking_lot::Mutex;
use tarpon_fs::NodeId;

/// Minimum file size for passthrough. Below it a backing id costs more than it saves: registering one takes 17 µs, and
/// such a file is read with one request.
const PASS_THROUGH_BYTES: u64 = 128 << 10;

/// The open files of one mount.
#[derive(Default)]
pub(super) struct Opens {
    inodes: Mutex<HashMap<NodeId, Open>>,
    refused: AtomicBool,
}

struct Open {
    count: u64,
    backing: Option<Arc<BackingId>>,
}

impl Opens {
    /// Whether an open of `node`, a file of `size` bytes, would use the local file.
    pub(super) fn wants_local(&self, node: NodeId, size: u64) -> bool {
        size >= PASS_THROUGH_BYTES && !self.refused.load(Ordering::Relaxed) && !self.inodes.lock().contains_key(&node)
    }

    /// Counts one more open of `node`, a file of `size` bytes. `local` returns the complete local file; `register` makes
    /// a backing id of it. Returns the id to answer with, or `None` for an open through the page cache.
    pub(super) fn open(
        &self,
        node: NodeId,
        size: u64,
        local: impl FnOnce() -> Option<Arc<File>>,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let mut inodes = self.inodes.lock();
        if let Some(open) = inodes.get_mut(&node) {
            open.count += 1;
            return open.backing.clone();
        }
        let backing = if size >= PASS_THROUGH_BYTES { self.back(local, register) } else { None };
        inodes.insert(node, Open { count: 1, backing: backing.clone() });
        backing
    }

    /// Counts one open of `node` less.
    pub(super) fn release(&self, node: NodeId) {
        let mut inodes = self.inodes.lock();
        if let Some(open) = inodes.get_mut(&node) {
            open.count -= 1;
            if open.count == 0 {
                inodes.remove(&node);
            }
        }
    }

    /// Registers a backing file. A kernel that refuses one (no capability, a store on a stacked file system) refuses all.
    fn back(
        &self,
        local: impl FnOnce() -> Option<Arc<File>>,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        match register(&*local()?) {
            Ok(backing) => Some(Arc::new(backing)),
            Err(error) => {
                self.refused.store(true, Ordering::Relaxed);
                tracing::info!(%error, "no passthrough on this mount: the kernel refused a backing file");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: u64 = PASS_THROUGH_BYTES;

    #[test]
    fn an_inode_that_is_open_through_the_cache_stays_there_until_the_last_release() {
        let opens = Opens::default();
        let mut files = 0;
        for local in [None, Some(())] {
            let file = || {
                files += 1;
                local.map(|()| Arc::new(tempfile::tempfile().unwrap()))
            };
            assert!(opens.open(NodeId(5), BIG, file, |_| unreachable!("nothing to register")).is_none());
        }
        assert_eq!(files, 1, "the second open does not ask for the file");
        opens.release(NodeId(5));
        opens.release(NodeId(5));
        opens.open(
            NodeId(5),
            BIG,
            || {
                files += 1;
                None
            },
            |_| unreachable!(),
        );
        assert_eq!(files, 2);
    }

    #[test]
    fn small_files_are_never_passed_through() {
        let opens = Opens::default();
        opens.open(NodeId(5), BIG - 1, || panic!("must not be asked for"), |_| unreachable!());
    }

    #[test]
    fn after_one_refusal_the_kernel_is_not_asked_again() {
        let opens = Opens::default();
        let file = || Some(Arc::new(tempfile::tempfile().unwrap()));
        let refuse = |_: &File| Err(io::Error::from_raw_os_error(1));
        assert!(opens.open(NodeId(5), BIG, file, refuse).is_none());
        assert!(opens.open(NodeId(6), BIG, || panic!("must not be asked for"), refuse).is_none());
    }
}

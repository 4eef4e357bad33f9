//! [`Opens`]: which inodes are open, and whether through the FUSE page cache or passed through to a local file.
//!
//! The kernel's rule per inode is "all or nothing": while any open is cached, none may be passed through, and vice versa.
//! All passed-through opens must use the same backing id. The mode may change while the inode is not open. A release
//! arrives after the kernel has dropped the mode, so a count of zero here means zero in the kernel.
//!
//! The connection may outlive this process, so its successor must know all this: every change is written to a record in
//! memory ([`OpenRecord`]), an open before its reply and a release after it. A kill in between leaves a count that is too
//! high, never too low: the inode keeps its mode until the mount ends, which is always right.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::BackingId;
use parking_lot::Mutex;
use tarpon_fs::NodeId;

use super::open_record::{OpenRecord, RecordedOpen, Slot};
use crate::device;

/// Minimum file size for passthrough. Below it a backing id costs more than it saves: registering one takes 17 µs, and
/// such a file is read with one request.
const PASS_THROUGH_BYTES: u64 = 128 << 10;

/// The open files of one mount.
#[derive(Default)]
pub(crate) struct Opens {
    inodes: Mutex<Inodes>,
    refused: AtomicBool,
    /// A device of the connection, to close what an earlier server registered.
    device: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Inodes {
    open: HashMap<NodeId, Open>,
    record: Option<OpenRecord>,
}

struct Open {
    count: u32,
    backing: Backing,
    slot: Option<Slot>,
}

/// Where the reads of an open inode go.
#[derive(Clone)]
enum Backing {
    /// Through the page cache of FUSE.
    Cached,
    /// To a local file, with the number of its backing id.
    File(Arc<BackingId>, u32),
    /// To a local file that an earlier server registered under this number.
    Inherited(u32),
}

/// Makes backing ids on the connection of a request.
pub(super) trait Register {
    /// Registers a file.
    fn register(&self, file: &File) -> io::Result<(BackingId, u32)>;

    /// The id that an earlier server registered under this number on the same connection.
    fn inherited(&self, number: u32) -> BackingId;
}

impl Opens {
    /// The open files of a connection that an earlier server has served, by its record.
    pub(crate) fn inherited(record: OwnedFd) -> io::Result<Self> {
        let (record, found) = OpenRecord::read(record)?;
        let open = found.into_iter().map(|(slot, RecordedOpen { node, count, backing })| {
            let backing = if backing == 0 { Backing::Cached } else { Backing::Inherited(backing) };
            (node, Open { count, backing, slot: Some(slot) })
        });
        let inodes = Inodes { open: open.collect(), record: Some(record) };
        Ok(Self { inodes: Mutex::new(inodes), ..Self::default() })
    }

    /// Has backing files that an earlier server registered closed through this device of the connection. Without one, the kernel keeps
    /// them open until the mount ends.
    pub(crate) fn close_through(&self, device: OwnedFd) {
        // There is one device of a connection that is taken over.
        let _is_first = self.device.set(device);
    }

    /// Starts to record, and returns the record. Call it before the first open.
    pub(crate) fn record(&self) -> io::Result<OwnedFd> {
        let mut inodes = self.inodes.lock();
        let record = match inodes.record.take() {
            Some(record) => record,
            None => OpenRecord::new()?,
        };
        let duplicate = record.duplicate();
        inodes.record = Some(record);
        duplicate
    }

    /// Whether an open of `node`, a file of `size` bytes, would use the local file.
    pub(super) fn wants_local(&self, node: NodeId, size: u64) -> bool {
        size >= PASS_THROUGH_BYTES
            && !self.refused.load(Ordering::Relaxed)
            && !self.inodes.lock().open.contains_key(&node)
    }

    /// Counts one more open of `node`, a file of `size` bytes. `local` returns the complete local file. Returns the id to
    /// answer with, or `None` for an open through the page cache.
    pub(super) fn open(
        &self,
        node: NodeId,
        size: u64,
        local: impl FnOnce() -> Option<Arc<File>>,
        ids: &impl Register,
    ) -> Option<Arc<BackingId>> {
        let mut inodes = self.inodes.lock();
        let Inodes { open, record } = &mut *inodes;
        let open = open.entry(node).or_insert_with(|| {
            let backing = if size >= PASS_THROUGH_BYTES { self.back(local, ids) } else { None };
            let backing = backing.map_or(Backing::Cached, |(id, number)| Backing::File(Arc::new(id), number));
            Open { count: 0, backing, slot: None }
        });
        open.count = open.count.saturating_add(1);
        if let Backing::Inherited(number) = open.backing {
            open.backing = Backing::File(Arc::new(ids.inherited(number)), number);
        }
        open.note(node, record.as_mut());
        match &open.backing {
            Backing::File(id, _) => Some(id.clone()),
            _ => None,
        }
    }

    /// Counts one open of `node` less. Call it after the reply.
    pub(super) fn release(&self, node: NodeId) {
        let Some(number) = self.count_release(node) else { return };
        let closed = self.device.get().map(|device| device::close_backing(device.as_fd(), number));
        if let Some(Err(error)) = closed {
            tracing::debug!(%error, "the kernel keeps a backing file open until the mount ends");
        }
    }

    /// Counts one open of `node` less. Returns the number of a backing file that nothing uses and nothing closes any more. It is not reused
    /// before it is closed.
    fn count_release(&self, node: NodeId) -> Option<u32> {
        let mut inodes = self.inodes.lock();
        let Inodes { open: all, record } = &mut *inodes;
        let open = all.get_mut(&node)?;
        open.count = open.count.saturating_sub(1);
        open.note(node, record.as_mut());
        if open.count > 0 {
            return None;
        }
        match all.remove(&node)?.backing {
            Backing::Inherited(number) => Some(number),
            // The value closes it.
            Backing::Cached | Backing::File(..) => None,
        }
    }

    /// Registers a backing file. A kernel that refuses one (no capability, a store on a stacked file system) refuses all.
    fn back(&self, local: impl FnOnce() -> Option<Arc<File>>, ids: &impl Register) -> Option<(BackingId, u32)> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        match ids.register(&*local()?) {
            Ok(backing) => Some(backing),
            Err(error) => {
                self.refused.store(true, Ordering::Relaxed);
                tracing::info!(%error, "no passthrough on this mount: the kernel refused a backing file");
                None
            }
        }
    }
}

impl Open {
    /// Writes it to the record. Without one, the connection ends with this process.
    fn note(&mut self, node: NodeId, record: Option<&mut OpenRecord>) {
        let Some(record) = record else { return };
        let backing = match self.backing {
            Backing::Cached => 0,
            Backing::File(_, number) | Backing::Inherited(number) => number,
        };
        let open = RecordedOpen { node, count: self.count, backing };
        if let Err(error) = record.write(&mut self.slot, &open) {
            tracing::warn!(%error, "an open file is not recorded for the next server");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: u64 = PASS_THROUGH_BYTES;

    /// A kernel that refuses every file.
    struct Refusal;

    impl Register for Refusal {
        fn register(&self, _: &File) -> io::Result<(BackingId, u32)> {
            Err(io::Error::from_raw_os_error(1))
        }

        fn inherited(&self, _: u32) -> BackingId {
            unreachable!("nothing is inherited")
        }
    }

    #[test]
    fn an_inode_that_is_open_through_the_cache_stays_there_until_the_last_release() {
        let opens = Opens::default();
        let mut files = 0;
        for _ in 0..2 {
            let file = || {
                files += 1;
                None
            };
            assert!(opens.open(NodeId(5), BIG, file, &Refusal).is_none());
        }
        assert_eq!(files, 1, "the second open does not look for the file");
        opens.release(NodeId(5));
        opens.release(NodeId(5));
        let file = || {
            files += 1;
            None
        };
        opens.open(NodeId(5), BIG, file, &Refusal);
        assert_eq!(files, 2);
    }

    #[test]
    fn small_files_are_never_passed_through() {
        let opens = Opens::default();
        opens.open(NodeId(5), BIG - 1, || panic!("must not look for the file"), &Refusal);
    }

    #[test]
    fn after_one_refusal_the_kernel_is_not_asked_again() {
        let opens = Opens::default();
        let file = || Some(Arc::new(tempfile::tempfile().unwrap()));
        assert!(opens.open(NodeId(5), BIG, file, &Refusal).is_none());
        assert!(opens.open(NodeId(6), BIG, || panic!("must not look for the file"), &Refusal).is_none());
    }

    #[test]
    fn the_last_release_leaves_a_backing_file_of_an_earlier_server_to_be_closed() {
        let (mut record, mut slot) = (OpenRecord::new().unwrap(), None);
        record.write(&mut slot, &RecordedOpen { node: NodeId(5), count: 2, backing: 7 }).unwrap();
        let opens = Opens::inherited(record.duplicate().unwrap()).unwrap();
        assert_eq!([opens.count_release(NodeId(5)), opens.count_release(NodeId(5))], [None, Some(7)]);
        assert_eq!(opens.count_release(NodeId(5)), None);
        opens.open(NodeId(6), BIG, || None, &Refusal);
        assert_eq!(opens.count_release(NodeId(6)), None, "it was open through the page cache");
    }

    #[test]
    fn a_successor_keeps_the_mode_of_an_inode_that_is_open() {
        let before = Opens::default();
        let record = before.record().unwrap();
        before.open(NodeId(5), BIG, || None, &Refusal);
        let after = Opens::inherited(record).unwrap();
        assert!(!after.wants_local(NodeId(5), BIG), "it is open through the page cache");
        after.release(NodeId(5));
        assert!(after.wants_local(NodeId(5), BIG));
        let record = after.record().unwrap();
        assert!(Opens::inherited(record).unwrap().wants_local(NodeId(5), BIG));
    }
}

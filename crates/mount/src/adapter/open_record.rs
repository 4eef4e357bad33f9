//! [`OpenRecord`]: the open inodes of a connection, in memory that outlives this process.
//!
//! A memfd of slots of 16 bytes: node id (0: free), count, number of the backing id (0: none). One write changes one slot,
//! so a kill leaves no half of one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;
use tarpon_fs::NodeId;

/// Bytes of a slot.
const SLOT_BYTES: usize = 16;

/// An open inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordedOpen {
    pub(super) node: NodeId,
    pub(super) count: u32,
    /// Number of its backing id; 0 if it is open through the page cache.
    pub(super) backing: u32,
}

/// Position of an inode in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u64);

/// The record.
pub(super) struct OpenRecord {
    file: File,
    free: Vec<Slot>,
    /// Number of slots.
    slots: u64,
}

impl OpenRecord {
    /// An empty record.
    pub(super) fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("tarpon-opens", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: file.into(), free: Vec::new(), slots: 0 })
    }

    /// The record that an earlier server has written, with its open inodes.
    pub(super) fn read(record: OwnedFd) -> io::Result<(Self, Vec<(Slot, RecordedOpen)>)> {
        let file = File::from(record);
        let slots = file.metadata()?.len() / SLOT_BYTES as u64;
        let (mut free, mut found) = (Vec::new(), Vec::new());
        for slot in (0..slots).map(Slot) {
            let mut bytes = [0; SLOT_BYTES];
            file.read_exact_at(&mut bytes, slot.position())?;
            match RecordedOpen::decode(bytes) {
                Some(open) => found.push((slot, open)),
                None => free.push(slot),
            }
        }
        Ok((Self { file, free, slots }, found))
    }

    /// Another descriptor of it.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(Into::into)
    }

    /// Writes an inode into its slot, which it gets here if it has none, and loses if it is not open any more.
    pub(super) fn write(&mut self, slot: &mut Option<Slot>, open: &RecordedOpen) -> io::Result<()> {
        let place = match *slot {
            Some(place) => place,
            None if open.count == 0 => return Ok(()),
            None => self.free.pop().unwrap_or_else(|| {
                self.slots += 1;
                Slot(self.slots - 1)
            }),
        };
        *slot = Some(place);
        if open.count == 0 {
            self.free.push(place);
            *slot = None;
        }
        self.file.write_all_at(&open.encode(), place.position())
    }
}

impl Slot {
    fn position(self) -> u64 {
        self.0 * SLOT_BYTES as u64
    }
}

impl RecordedOpen {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        if self.count > 0 {
            bytes[..8].copy_from_slice(&self.node.0.to_ne_bytes());
            bytes[8..12].copy_from_slice(&self.count.to_ne_bytes());
            bytes[12..].copy_from_slice(&self.backing.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; SLOT_BYTES]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        let node = NodeId(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        let (count, backing) = (u32::from_ne_bytes([i, j, k, l]), u32::from_ne_bytes([m, n, o, p]));
        (node.0 != 0 && count > 0).then_some(Self { node, count, backing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(node: u64, count: u32, backing: u32) -> RecordedOpen {
        RecordedOpen { node: NodeId(node), count, backing }
    }

    #[test]
    fn a_successor_reads_the_open_inodes_and_uses_the_free_slots() {
        let mut record = OpenRecord::new().unwrap();
        let mut slots = [None; 3];
        for (number, slot) in (1..).zip(&mut slots) {
            record.write(slot, &open(number, 1, 0)).unwrap();
        }
        record.write(&mut slots[0], &open(1, 5, 77)).unwrap();
        record.write(&mut slots[1], &open(2, 0, 0)).unwrap();
        assert_eq!(slots[1], None);
        let (mut successor, found) = OpenRecord::read(record.duplicate().unwrap()).unwrap();
        assert_eq!(found.iter().map(|(_, open)| *open).collect::<Vec<_>>(), [open(1, 5, 77), open(3, 1, 0)]);
        let mut slot = None;
        successor.write(&mut slot, &open(9, 1, 0)).unwrap();
        assert_eq!(slot, Some(Slot(1)));
        let (_, again) = OpenRecord::read(successor.duplicate().unwrap()).unwrap();
        assert_eq!(again.len(), 3);
    }

    #[test]
    fn an_inode_that_was_never_recorded_is_released_without_a_slot() {
        let mut record = OpenRecord::new().unwrap();
        let mut slot = None;
        record.write(&mut slot, &open(1, 0, 0)).unwrap();
        assert_eq!((slot, record.slots), (None, 0));
    }
}

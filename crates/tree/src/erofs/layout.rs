//! Assigns places in the image.
//!
//! Directories in pre-order. For each its own blocks (if it needs any), then the inodes of its children in the order of their
//! names. So listing a directory with `stat`, or walking the whole tree, reads forward. An inode with data behind it must not cross
//! a block. If it does not fit, it leaves a hole, which the next inodes fill.

use super::format::{BLOCK, Nid, SLOT};
use super::plan::Plan;
use crate::{DentryId, Kind, Tree};

/// The places of all inodes and data.
pub(super) struct Layout {
    /// Of each inode, in slots of 32 bytes.
    slots: Vec<Option<u32>>,
    /// First block of each inode's data, 0 if it has no blocks of its own.
    blocks: Vec<u32>,
    /// Bytes up to the end of the last block.
    pub(super) bytes: u64,
}

impl Layout {
    /// Lays out `tree`, the root's inode first. The first `head` bytes of the image are reserved.
    pub(super) fn new<'a>(tree: &Tree<'a>, head: u64, plan: impl Fn(DentryId) -> Plan<'a>) -> Self {
        let inodes = tree.inodes().len();
        let mut layout = Self { slots: vec![None; inodes], blocks: vec![0; inodes], bytes: 0 };
        let mut room = Room { end: head, hole: 0..0 };
        layout.place(tree, tree.root(), &plan, &mut room);
        for directory in tree.walk().filter(|dentry| tree.inode(*dentry).kind() == Kind::Directory) {
            let block_bytes = plan(directory).block_bytes();
            layout.blocks[tree.inode_number(directory)] = room.blocks(block_bytes);
            for child in tree.children(directory) {
                layout.place(tree, child, &plan, &mut room);
            }
        }
        layout.bytes = room.end.next_multiple_of(BLOCK);
        layout
    }

    fn place<'a>(&mut self, tree: &Tree<'a>, dentry: DentryId, plan: impl Fn(DentryId) -> Plan<'a>, room: &mut Room) {
        let number = tree.inode_number(dentry);
        if self.slots[number].is_some() {
            return;
        }
        let plan = plan(dentry);
        if tree.inode(dentry).kind() != Kind::Directory {
            self.blocks[number] = room.blocks(plan.block_bytes());
        }
        let offset = room.inode(plan.bytes(), plan.keeps_together());
        self.slots[number] = Some(u32::try_from(offset / SLOT).expect("an image that fits in memory is below 128 GiB"));
    }

    /// The number of an inode.
    pub(super) fn nid(&self, inode: usize) -> Nid {
        Nid(u64::from(self.slots[inode].expect("every inode has a name in a directory, so it was placed")))
    }

    /// The first block of an inode's data; 0 if it has none.
    pub(super) fn block(&self, inode: usize) -> u32 {
        self.blocks[inode]
    }
}

/// Free space: everything from `end` on, and a hole in a block before it.
struct Room {
    end: u64,
    hole: std::ops::Range<u64>,
}

impl Room {
    /// Room for an inode, at a multiple of [`SLOT`].
    fn inode(&mut self, bytes: u64, keep_together: bool) -> u64 {
        let in_hole = self.hole.start.next_multiple_of(SLOT);
        if in_hole + bytes <= self.hole.end {
            self.hole.start = in_hole + bytes;
            return in_hole;
        }
        let start = self.end.next_multiple_of(SLOT);
        let start = if keep_together && start % BLOCK + bytes > BLOCK { self.next_block() } else { start };
        self.end = start + bytes;
        start
    }

    /// Room for data, from the start of a block on; its last block may hold other things behind it.
    fn blocks(&mut self, bytes: u64) -> u32 {
        if bytes == 0 {
            return 0;
        }
        let start = self.next_block();
        self.end = start + bytes;
        u32::try_from(start / BLOCK).expect("an image that fits in memory is below 128 GiB")
    }

    /// The start of the first free block. The free space before it becomes the hole.
    fn next_block(&mut self) -> u64 {
        let start = self.end.next_multiple_of(BLOCK);
        if start - self.end > self.hole.end - self.hole.start {
            self.hole = self.end..start;
        }
        start
    }
}

//! Assigns places in the image.
//!
//! Directories in pre-order. For each its own blocks (if it needs any), then the inodes of its children in the order of their
//! names. So listing a directory with `stat`, or walking the whole tree, reads forward. An inode with data behind it must not cross
//! a block. If it does not fit, it leaves a hole, which the next inodes fill.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::format::{BLOCK, Nid, SLOT};
use super::plan::Plan;
use crate::{DentryId, Kind, Tree};

/// The places of all inodes and data.
pub(super) struct Layout {
    /// Of each inode, in slots of 32 bytes. The first slots hold the superblock.
    slots: Vec<Option<NonZeroU32>>,
    /// First block of the data of those inodes that have blocks of their own.
    blocks: HashMap<usize, u32>,
    /// Everything that has a place, by its first slot: blocks of data and inodes.
    in_order: Vec<(u32, DentryId)>,
    /// Bytes up to the end of the last block.
    pub(super) bytes: u64,
}

impl Layout {
    /// Lays out `tree`, the root's inode first. The first `head` bytes of the image are reserved.
    pub(super) fn new<'a>(tree: &Tree<'a>, head: u64, plan: impl Fn(DentryId) -> Plan<'a>) -> Self {
        let inodes = tree.inodes().len();
        let in_order = Vec::with_capacity(inodes);
        let mut layout = Self { slots: vec![None; inodes], blocks: HashMap::new(), in_order, bytes: 0 };
        let mut room = Room { end: head, hole: 0..0 };
        layout.place(tree, tree.root(), &plan, &mut room);
        for directory in tree.walk().filter(|dentry| tree.inode(*dentry).kind() == Kind::Directory) {
            let block_bytes = plan(directory).block_bytes();
            layout.place_blocks(tree, directory, block_bytes, &mut room);
            for child in tree.children(directory) {
                layout.place(tree, child, &plan, &mut room);
            }
        }
        layout.bytes = room.end.next_multiple_of(BLOCK);
        // Stable, because that is faster where only few are out of order: those in holes.
        layout.in_order.sort_by_key(|(slot, _)| *slot);
        layout
    }

    fn place<'a>(&mut self, tree: &Tree<'a>, dentry: DentryId, plan: impl Fn(DentryId) -> Plan<'a>, room: &mut Room) {
        let number = tree.inode_number(dentry);
        if self.slots[number].is_some() {
            return;
        }
        let plan = plan(dentry);
        if tree.inode(dentry).kind() != Kind::Directory {
            self.place_blocks(tree, dentry, plan.block_bytes(), room);
        }
        let slot = to_slot(room.inode(plan.bytes(), plan.keeps_together()));
        self.slots[number] = NonZeroU32::new(slot);
        self.in_order.push((slot, dentry));
    }

    fn place_blocks(&mut self, tree: &Tree<'_>, dentry: DentryId, bytes: u64, room: &mut Room) {
        if bytes == 0 {
            return;
        }
        let start = room.blocks(bytes);
        let block = u32::try_from(start / BLOCK).expect("an image has less than 128 GiB: see `to_slot`");
        self.blocks.insert(tree.inode_number(dentry), block);
        self.in_order.push((to_slot(start), dentry));
    }

    /// Blocks of data and inodes, each by one name of its inode, in the order of the image.
    pub(super) fn in_order(&self, tree: &Tree<'_>) -> impl Iterator<Item = (Section, DentryId)> {
        self.in_order.iter().map(|(slot, dentry)| {
            let is_inode = self.slots[tree.inode_number(*dentry)].is_some_and(|inode| inode.get() == *slot);
            (if is_inode { Section::Inode } else { Section::Blocks }, *dentry)
        })
    }

    /// The number of an inode.
    pub(super) fn nid(&self, inode: usize) -> Nid {
        Nid(self.slots[inode].expect("every inode has a name in a directory, so it was placed").get().into())
    }

    /// The first block of an inode's data; 0 if it has none.
    pub(super) fn block(&self, inode: usize) -> u32 {
        self.blocks.get(&inode).copied().unwrap_or(0)
    }
}

/// What is at a place of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// Data of an inode, in blocks of its own.
    Blocks,
    /// An inode, with what follows it.
    Inode,
}

/// The slot at this offset.
fn to_slot(offset: u64) -> u32 {
    u32::try_from(offset / SLOT).expect("an image has less than 128 GiB: names and xattrs are charged to its allowance")
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
    fn blocks(&mut self, bytes: u64) -> u64 {
        let start = self.next_block();
        self.end = start + bytes;
        start
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

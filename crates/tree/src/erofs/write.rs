//! Writes the merged tree as an EROFS image.
//!
//! Two passes over the tree: the first plans each inode and assigns its place ([`super::layout`]), the second plans it again and
//! writes it there. Only the places are kept in between, so that memory holds the image and little else.

use std::cmp::Reverse;
use std::collections::HashMap;

use tarpon_layer::Timestamp;

use super::crc32c::crc32c;
use super::directory;
use super::format::{
    BLOCK, CHECKSUM_OFFSET, INCOMPAT_CHUNKED_FILE, INCOMPAT_XATTR_PREFIXES, SLOT, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET,
    Superblock, Version,
};
use super::layout::Layout;
use super::plan::{Data, HOLE, Plan};
use super::prefixes::LongPrefixes;
use super::write_xattr::XattrWriter;
use crate::{DentryId, Tree};

/// Offset of the table of long prefixes, behind the superblock.
const PREFIXES_OFFSET: u32 = 1152;
const _: () = assert!(PREFIXES_OFFSET as u64 == SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64);

/// The tree as an EROFS image. The same tree gives the same bytes.
pub fn write(tree: &Tree<'_>) -> Vec<u8> {
    write_with(LongPrefixes::Both, tree)
}

/// As [`write()`], with these long prefixes.
pub(super) fn write_with(prefixes: LongPrefixes, tree: &Tree<'_>) -> Vec<u8> {
    let xattrs = XattrWriter::new(tree, prefixes);
    let common_mtime = most_common_mtime(tree);
    let plan = |dentry| Plan::new(tree, dentry, &xattrs, common_mtime);
    let table = prefixes.encode();
    let layout = Layout::new(tree, u64::from(PREFIXES_OFFSET) + table.len() as u64, plan);
    let area_start = layout.bytes;
    let total = (area_start + xattrs.area().len() as u64).next_multiple_of(BLOCK);

    let mut image = Image(vec![0; to_index(total)]);
    image.put(PREFIXES_OFFSET.into(), &table);
    image.put(area_start, xattrs.area());
    let mut scratch = Vec::new();
    for dentry in first_names(tree) {
        image.put_inode(tree, &layout, dentry, plan(dentry), common_mtime, &mut scratch);
    }
    let in_blocks = |bytes: u64| u32::try_from(bytes / BLOCK).expect("an image that fits in memory is below 16 TiB");
    image.put_superblock(&Superblock {
        incompat: INCOMPAT_CHUNKED_FILE | if table.is_empty() { 0 } else { INCOMPAT_XATTR_PREFIXES },
        root: u16::try_from(layout.nid(0).0).expect("the root's inode is in the first block"),
        inodes: tree.inodes().len() as u64,
        seconds: common_mtime.seconds.cast_unsigned(),
        nanoseconds: common_mtime.nanoseconds,
        blocks: in_blocks(total),
        xattr_block: if xattrs.area().is_empty() { 0 } else { in_blocks(area_start) },
        prefix_count: prefixes.count(),
        prefix_start: PREFIXES_OFFSET / 4,
        version: Version::Current,
        no_xattrs: tree.inodes().all(|inode| inode.xattrs().next().is_none()),
    });
    image.0
}

/// The first name of each inode, in the order of the inodes' numbers.
fn first_names(tree: &Tree<'_>) -> impl Iterator<Item = DentryId> {
    let mut next = 0;
    tree.walk().filter(move |dentry| {
        let is_first = tree.inode_number(*dentry) == next;
        next += usize::from(is_first);
        is_first
    })
}

/// The modification time of most inodes, which can then be compact. In reproducibly built images nearly all have the same.
fn most_common_mtime(tree: &Tree<'_>) -> Timestamp {
    let mut counts: HashMap<(i64, u32), usize> = HashMap::new();
    for Timestamp { seconds, nanoseconds } in tree.inodes().map(|inode| inode.attributes().mtime) {
        *counts.entry((seconds, nanoseconds)).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(mtime, count)| (*count, Reverse(*mtime)));
    most.map(|((seconds, nanoseconds), _)| Timestamp { seconds, nanoseconds }).unwrap_or_default()
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("the image is in memory")
}

struct Image(Vec<u8>);

impl Image {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let start = to_index(offset);
        self.0[start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn put_inode<'a>(
        &mut self,
        tree: &Tree<'a>,
        layout: &Layout,
        dentry: DentryId,
        mut plan: Plan<'a>,
        common_mtime: Timestamp,
        scratch: &mut Vec<u8>,
    ) {
        let number = tree.inode_number(dentry);
        let block_bytes = plan.block_bytes();
        if block_bytes > 0 {
            plan.raw.data = layout.block(number);
        }
        scratch.clear();
        plan.raw.encode((common_mtime.seconds, common_mtime.nanoseconds), scratch);
        scratch.extend(&plan.xattrs);
        let data = match plan.data {
            Data::Nothing => Vec::new(),
            Data::Listing(listing) => directory::encode(&listing, |leads_to| {
                (layout.nid(tree.inode_number(leads_to)), tree.inode(leads_to).kind())
            }),
            Data::Target(target) => target.to_vec(),
            Data::Holes(count) => HOLE.repeat(to_index(count)),
        };
        let (in_blocks, behind) = data.split_at(to_index(block_bytes));
        self.put(u64::from(layout.block(number)) * BLOCK, in_blocks);
        scratch.extend(behind);
        self.put(layout.nid(number).0 * SLOT, scratch);
    }

    fn put_superblock(&mut self, superblock: &Superblock) {
        self.put(SUPERBLOCK_OFFSET, &superblock.encode());
        let checksum = checksum(&self.0);
        self.put(SUPERBLOCK_OFFSET + CHECKSUM_OFFSET as u64, &checksum.to_le_bytes());
    }
}

/// The checksum of an image's superblock: over the first block from the superblock on, with a checksum of 0 in it.
pub(super) fn checksum(image: &[u8]) -> u32 {
    let covered = &image[to_index(SUPERBLOCK_OFFSET)..to_index(BLOCK)];
    let (before, behind) = covered.split_at(CHECKSUM_OFFSET);
    crc32c(crc32c(crc32c(u32::MAX, before), &[0; 4]), &behind[4..])
}

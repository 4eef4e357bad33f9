//! Writes the merged tree as an EROFS image.
//!
//! Two passes over the tree: the first plans each inode and assigns its place ([`super::layout`]), the second plans it again and
//! writes it there. Only the places are kept in between. The image itself is written in the order of its bytes, to a file.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use tarpon_layer::Timestamp;

use super::crc32c::crc32c;
use super::directory::BLOCK_BYTES;
use super::format::{
    BLOCK, CHECKSUM_OFFSET, INCOMPAT_CHUNKED_FILE, INCOMPAT_XATTR_PREFIXES, SLOT, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET,
    Superblock, Version,
};
use super::layout::{Layout, Section};
use super::plan::Plan;
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

/// Writes the output of [`write()`] to `out`, from its beginning to its end, so that the image is never in memory.
///
/// # Errors
/// Those of `out`.
pub fn write_to(tree: &Tree<'_>, out: impl Write) -> io::Result<()> {
    Writer::new(tree, LongPrefixes::Both).write(out)
}

/// As [`write()`], with these long prefixes.
pub(super) fn write_with(prefixes: LongPrefixes, tree: &Tree<'_>) -> Vec<u8> {
    let writer = Writer::new(tree, prefixes);
    let mut image = Vec::with_capacity(usize::try_from(writer.size()).unwrap_or_default());
    writer.write(&mut image).expect("memory takes everything");
    image
}

struct Writer<'t, 'a> {
    tree: &'t Tree<'a>,
    prefixes: LongPrefixes,
    /// The table of long prefixes.
    table: Vec<u8>,
    xattrs: XattrWriter<'a>,
    common_mtime: Timestamp,
    layout: Layout,
}

impl<'t, 'a> Writer<'t, 'a> {
    /// Assigns all places.
    fn new(tree: &'t Tree<'a>, prefixes: LongPrefixes) -> Self {
        let xattrs = XattrWriter::new(tree, prefixes);
        let common_mtime = most_common_mtime(tree);
        let table = prefixes.encode();
        let head = u64::from(PREFIXES_OFFSET) + table.len() as u64;
        let layout = Layout::new(tree, head, |dentry| Plan::new(tree, dentry, &xattrs, common_mtime));
        Self { tree, prefixes, table, xattrs, common_mtime, layout }
    }

    /// Bytes of the image.
    fn size(&self) -> u64 {
        (self.layout.bytes + self.xattrs.area().len() as u64).next_multiple_of(BLOCK)
    }

    fn write(&self, out: impl Write) -> io::Result<()> {
        let (area_start, total) = (self.layout.bytes, self.size());
        let mut out = Output::new(out);
        out.put(SUPERBLOCK_OFFSET, &self.superblock(total).encode())?;
        out.put(PREFIXES_OFFSET.into(), &self.table)?;
        let mut scratch = Vec::new();
        for (section, dentry) in self.layout.in_order(self.tree) {
            self.put(section, dentry, &mut out, &mut scratch)?;
        }
        out.put(area_start, self.xattrs.area())?;
        out.put(total, &[])
    }

    fn put(
        &self,
        section: Section,
        dentry: DentryId,
        out: &mut Output<impl Write>,
        scratch: &mut Vec<u8>,
    ) -> io::Result<()> {
        let (tree, layout) = (self.tree, &self.layout);
        let number = tree.inode_number(dentry);
        let mut plan = Plan::new(tree, dentry, &self.xattrs, self.common_mtime);
        let resolve = |leads_to| (layout.nid(tree.inode_number(leads_to)), tree.inode(leads_to).kind());
        if section == Section::Blocks {
            return out.put(u64::from(layout.block(number)) * BLOCK, &plan.data_in_blocks(resolve));
        }
        if plan.block_bytes() > 0 {
            plan.raw.data = layout.block(number);
        }
        scratch.clear();
        plan.raw.encode((self.common_mtime.seconds, self.common_mtime.nanoseconds), scratch);
        scratch.extend(&plan.xattrs);
        scratch.extend(plan.data_behind(resolve));
        out.put(layout.nid(number).0 * SLOT, scratch)
    }

    /// The superblock of an image of `total` bytes.
    fn superblock(&self, total: u64) -> Superblock {
        let in_blocks =
            |bytes: u64| u32::try_from(bytes / BLOCK).expect("the layout is below 16 TiB, and xattrs are limited");
        let area_start = self.layout.bytes;
        Superblock {
            incompat: INCOMPAT_CHUNKED_FILE | if self.table.is_empty() { 0 } else { INCOMPAT_XATTR_PREFIXES },
            root: u16::try_from(self.layout.nid(0).0).expect("the root's inode is in the first block"),
            inodes: self.tree.inodes().len() as u64,
            seconds: self.common_mtime.seconds.cast_unsigned(),
            nanoseconds: self.common_mtime.nanoseconds,
            blocks: in_blocks(total),
            xattr_block: if self.xattrs.area().is_empty() { 0 } else { in_blocks(area_start) },
            prefix_count: self.prefixes.count(),
            prefix_start: PREFIXES_OFFSET / 4,
            version: Version::Current,
            no_xattrs: self.tree.inodes().all(|inode| inode.xattrs().next().is_none()),
        }
    }
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
    usize::try_from(offset).expect("an offset in the first block")
}

/// An image that is written from its beginning to its end, with zeros between its parts.
struct Output<W> {
    out: W,
    /// The first block, until it is complete: the superblock has a checksum over it.
    first: Vec<u8>,
    /// Bytes up to here were put.
    end: u64,
}

impl<W: Write> Output<W> {
    fn new(out: W) -> Self {
        Self { out, first: Vec::with_capacity(BLOCK_BYTES), end: 0 }
    }

    /// Continues the image at `offset`, not before the end of what was put last.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        debug_assert!(self.end <= offset, "{offset} was passed: {}", self.end);
        while self.end < offset {
            let gap = usize::try_from(offset - self.end).unwrap_or(usize::MAX);
            self.push(&ZEROS[..gap.min(BLOCK_BYTES)])?;
        }
        self.push(bytes)
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.end += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.first.len()));
        self.first.extend(first);
        if !first.is_empty() && self.first.len() == BLOCK_BYTES {
            let checksum = checksum(&self.first).to_le_bytes();
            let at = to_index(SUPERBLOCK_OFFSET) + CHECKSUM_OFFSET;
            self.first[at..at + checksum.len()].copy_from_slice(&checksum);
            self.out.write_all(&self.first)?;
        }
        self.out.write_all(rest)
    }
}

/// The checksum of an image's superblock: over the first block from the superblock on, with a checksum of 0 in it.
pub(super) fn checksum(image: &[u8]) -> u32 {
    let covered = &image[to_index(SUPERBLOCK_OFFSET)..to_index(BLOCK)];
    let (before, behind) = covered.split_at(CHECKSUM_OFFSET);
    crc32c(crc32c(crc32c(u32::MAX, before), &[0; 4]), &behind[4..])
}

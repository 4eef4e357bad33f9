//! Reads and writes the data of a directory: blocks of entries (12 bytes each) followed by their names.
//!
//! Invariants:
//! - Names ascend by bytes throughout, `.` and `..` among them, so that the kernel and [`super::Image`] find one by binary
//!   search over blocks and then inside of one.
//! - A NUL that belongs to the directory's data follows the last name of a block, unless the name ends with the block. Only
//!   `readdir` of the kernel knows where the data ends: a lookup assumes that the last name continues up to a NUL or the end of the
//!   block (`erofs_dirnamecmp` in `fs/erofs/namei.c`), whatever bytes follow.

use std::ops::Range;

use super::error::ImageError;
use super::format::{BLOCK, BLOCK_BITS, Nid, kind_of_code, type_code, u16_at, u64_at};
use crate::{DentryId, Kind, Tree};
use tarpon_oci::limits;

/// Bytes of an entry without its name.
pub(super) const ENTRY_BYTES: usize = 12;
/// [`BLOCK`], for indexing.
pub(super) const BLOCK_BYTES: usize = 1 << BLOCK_BITS;

/// A name in a directory and the tree's name of its target.
pub(super) struct Listed<'a> {
    name: &'a [u8],
    leads_to: DentryId,
}

/// The entries of a directory, in the order of the disk.
pub(super) fn listing<'a>(tree: &Tree<'a>, directory: DentryId) -> Vec<Listed<'a>> {
    let dot = |name: &'a [u8], leads_to| Listed { name, leads_to };
    let mut listing = vec![dot(b".", directory), dot(b"..", tree.parent(directory))];
    listing.extend(tree.children(directory).map(|child| Listed { name: tree.name(child), leads_to: child }));
    listing.sort_by_key(|listed| listed.name);
    listing
}

/// Cuts a listing into runs that fit into a block each.
fn blocks<'l, 'a>(listing: &'l [Listed<'a>]) -> impl Iterator<Item = &'l [Listed<'a>]> {
    let mut rest = listing;
    std::iter::from_fn(move || {
        let mut room = BLOCK_BYTES;
        let fits = |listed: &&Listed<'_>| {
            let left = room.checked_sub(ENTRY_BYTES + listed.name.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let count = rest.iter().take_while(fits).count();
        let block;
        (block, rest) = rest.split_at(count);
        (!block.is_empty()).then_some(block)
    })
}

/// Size of a directory in bytes: all blocks but the last are full.
pub(super) fn size(listing: &[Listed<'_>]) -> u64 {
    blocks(listing).fold(0, |size: u64, block| size.next_multiple_of(BLOCK) + used(block) as u64)
}

/// Bytes of a block, with the NUL behind its last name.
fn used(block: &[Listed<'_>]) -> usize {
    let bytes: usize = block.iter().map(|listed| ENTRY_BYTES + listed.name.len()).sum();
    bytes.saturating_add(1).min(BLOCK_BYTES)
}

/// The bytes of some blocks of a directory. All of them have the length [`size()`].
pub(super) fn encode(
    listing: &[Listed<'_>],
    wanted: Range<usize>,
    resolve: impl Fn(DentryId) -> (Nid, Kind),
) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for block in blocks(listing).take(wanted.end).skip(wanted.start) {
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
        let mut name_offset = block.len() * ENTRY_BYTES;
        for listed in block {
            let (nid, kind) = resolve(listed.leads_to);
            out.extend(nid.0.to_le_bytes());
            out.extend(u16::try_from(name_offset).expect("offsets in a block are below 4096").to_le_bytes());
            out.extend([type_code(kind), 0]);
            name_offset += listed.name.len();
        }
        out.extend(block.iter().flat_map(|listed| listed.name));
        if !out.len().is_multiple_of(BLOCK_BYTES) {
            out.push(0);
        }
    }
    out
}

/// A block of a directory as it was read. Nothing in it is trusted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
    /// Whether a name may end with the data inside of a block.
    may_lack_nul: bool,
}

impl<'a> Block<'a> {
    pub(super) fn new(bytes: &'a [u8], may_lack_nul: bool) -> Result<Self, ImageError> {
        let names = if bytes.len() < ENTRY_BYTES { 0 } else { usize::from(u16_at(bytes, 8)) };
        if names < ENTRY_BYTES || !names.is_multiple_of(ENTRY_BYTES) || names > bytes.len() {
            return Err(ImageError::Corrupt("directory block"));
        }
        Ok(Self { bytes, count: names / ENTRY_BYTES, may_lack_nul })
    }

    /// Number of entries, at least 1.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The entry at `index`, which must be below [`Block::count`].
    pub(super) fn entry(&self, index: usize) -> Result<(&'a [u8], Nid, Kind), ImageError> {
        let at = index * ENTRY_BYTES;
        let start = usize::from(u16_at(self.bytes, at + 8));
        let is_last = index + 1 >= self.count;
        let end = if is_last { self.bytes.len() } else { usize::from(u16_at(self.bytes, at + ENTRY_BYTES + 8)) };
        let name = self.bytes.get(start..end).unwrap_or_default();
        let name = if is_last { self.last_name(name)? } else { name };
        let kind = kind_of_code(self.bytes[at + 10]);
        match kind {
            Some(kind) if start >= self.count * ENTRY_BYTES && is_name(name) => {
                Ok((name, Nid(u64_at(self.bytes, at)), kind))
            }
            _ => Err(ImageError::Corrupt("directory entry")),
        }
    }

    /// The last name ends where the padding of the block begins. `rest` is all from its beginning on.
    fn last_name(&self, rest: &'a [u8]) -> Result<&'a [u8], ImageError> {
        match rest.iter().position(|byte| *byte == 0) {
            Some(end) => Ok(&rest[..end]),
            None if self.bytes.len() == BLOCK_BYTES || self.may_lack_nul => Ok(rest),
            None => Err(ImageError::Corrupt("end of a name")),
        }
    }
}

/// The data of a directory, in the two places where it may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryData<'a> {
    pub(super) blocks: &'a [u8],
    pub(super) tail: &'a [u8],
    pub(super) may_lack_nul: bool,
}

impl<'a> DirectoryData<'a> {
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len().div_ceil(BLOCK_BYTES) + usize::from(!self.tail.is_empty())
    }

    /// The block at `index`, which must be below [`DirectoryData::blocks`].
    pub(super) fn block(&self, index: usize) -> Result<Block<'a>, ImageError> {
        Block::new(self.blocks.chunks(BLOCK_BYTES).nth(index).unwrap_or(self.tail), self.may_lack_nul)
    }
}

fn is_name(name: &[u8]) -> bool {
    (1..=limits::NAME_BYTES).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

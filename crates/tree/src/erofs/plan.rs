//! The planned bytes of one inode, before its place is known.

use super::directory::{self, BLOCK_BYTES, Listed};
use super::format::{BLOCK, CHUNK_BITS_MASK, DataLayout, NULL_CHUNK, Nid, type_bits};
use super::raw_inode::RawInode;
use super::write_xattr::XattrWriter;
use crate::{DentryId, Kind, Tree};
use tarpon_layer::{Device, Timestamp};

/// The data of an inode.
enum Data<'a> {
    /// None at all.
    Nothing,
    /// The entries of a directory.
    Listing(Vec<Listed<'a>>),
    /// Target of a symbolic link.
    Target(&'a [u8]),
    /// A file: this many chunks, all of them holes.
    Holes(u64),
}

/// An inode with all data behind it.
pub(super) struct Plan<'a> {
    /// Complete except for the address of its blocks.
    pub(super) raw: RawInode,
    pub(super) xattrs: Vec<u8>,
    data: Data<'a>,
}

impl<'a> Plan<'a> {
    /// Plans the inode of `dentry`. Inodes of `common_mtime` need not store it.
    pub(super) fn new(tree: &Tree<'a>, dentry: DentryId, xattrs: &XattrWriter<'a>, common_mtime: Timestamp) -> Self {
        let inode = tree.inode(dentry);
        let attributes = inode.attributes();
        let mut raw = RawInode {
            layout: DataLayout::Plain,
            xattr_count: 0,
            mode: type_bits(inode.kind()) | attributes.mode & 0o7777,
            size: inode.size(),
            data: inode.device().map_or(0, encode_device),
            serial: u32::try_from(tree.inode_number(dentry)).expect("inodes are counted in 32 bits"),
            uid: attributes.uid,
            gid: attributes.gid,
            links: inode.links(),
            mtime: Some(attributes.mtime)
                .filter(|mtime| *mtime != common_mtime)
                .map(|mtime| (mtime.seconds, mtime.nanoseconds)),
        };
        let data = match (inode.kind(), inode.target()) {
            (Kind::Directory, _) => Data::Listing(directory::listing(tree, dentry)),
            (_, Some(target)) => Data::Target(target),
            (Kind::File, _) if raw.size > 0 => Data::Holes(chunk_count(raw.size)),
            _ => Data::Nothing,
        };
        if let Data::Listing(listing) = &data {
            raw.size = directory::size(listing);
        }
        let xattrs = xattrs.inline(inode);
        raw.xattr_count = xattr_count(xattrs.len());
        let mut plan = Self { raw, xattrs, data };
        plan.choose_layout();
        plan
    }

    fn choose_layout(&mut self) {
        match self.data {
            Data::Nothing => {}
            Data::Holes(_) => {
                self.raw.layout = DataLayout::Chunked;
                self.raw.data = u32::from(chunk_bits(self.raw.size));
            }
            Data::Listing(_) | Data::Target(_) => {
                let tail = self.raw.size % BLOCK;
                if tail > 0 && self.head_bytes() + tail <= BLOCK {
                    self.raw.layout = DataLayout::Inline;
                }
            }
        }
    }

    fn head_bytes(&self) -> u64 {
        self.raw.bytes() + self.xattrs.len() as u64
    }

    /// Bytes of the inode with the data right behind it.
    pub(super) fn bytes(&self) -> u64 {
        self.head_bytes()
            + match (&self.data, self.raw.layout) {
                (Data::Holes(count), _) => 4 * count,
                (_, DataLayout::Inline) => self.raw.size % BLOCK,
                _ => 0,
            }
    }

    /// Whether those bytes must be in one block.
    pub(super) fn keeps_together(&self) -> bool {
        self.raw.layout == DataLayout::Inline
    }

    /// Bytes of data in blocks of their own.
    pub(super) fn block_bytes(&self) -> u64 {
        match (&self.data, self.raw.layout) {
            (Data::Listing(_) | Data::Target(_), DataLayout::Inline) => self.raw.size - self.raw.size % BLOCK,
            (Data::Listing(_) | Data::Target(_), _) => self.raw.size,
            _ => 0,
        }
    }
}

impl Plan<'_> {
    /// The data in blocks of its own.
    pub(super) fn data_in_blocks(&self, resolve: impl Fn(DentryId) -> (Nid, Kind)) -> Vec<u8> {
        let end = to_index(self.block_bytes());
        match &self.data {
            Data::Listing(listing) => directory::encode(listing, 0..end.div_ceil(BLOCK_BYTES), resolve),
            Data::Target(target) => target[..end].to_vec(),
            Data::Nothing | Data::Holes(_) => Vec::new(),
        }
    }

    /// The data behind the inode.
    pub(super) fn data_behind(&self, resolve: impl Fn(DentryId) -> (Nid, Kind)) -> Vec<u8> {
        let start = to_index(self.block_bytes());
        match &self.data {
            Data::Listing(listing) => directory::encode(listing, start.div_ceil(BLOCK_BYTES)..usize::MAX, resolve),
            Data::Target(target) => target[start..].to_vec(),
            Data::Holes(count) => HOLE.repeat(to_index(*count)),
            Data::Nothing => Vec::new(),
        }
    }
}

fn to_index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a directory or target that was made in memory")
}

/// The smallest power of two for a chunk, in blocks, with which one chunk holds `size` bytes; at most what fits the field.
fn chunk_bits(size: u64) -> u16 {
    let blocks = size.div_ceil(BLOCK).checked_next_power_of_two().unwrap_or(1 << 63);
    u16::try_from(blocks.trailing_zeros()).unwrap_or(CHUNK_BITS_MASK).min(CHUNK_BITS_MASK)
}

fn chunk_count(size: u64) -> u64 {
    size.div_ceil(BLOCK << chunk_bits(size))
}

/// The number in an inode that encodes the length of its xattrs: words behind the header, counted from 1.
fn xattr_count(bytes: usize) -> u16 {
    let words = bytes.checked_sub(super::write_xattr::HEADER_BYTES).map_or(0, |behind| 1 + behind / 4);
    u16::try_from(words).expect("large xattrs are shared, so the rest fits: see `LARGE`")
}

/// Linux's own 32-bit form of a device number.
fn encode_device(Device { major, minor }: Device) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Reverses [`encode_device`].
pub(super) fn decode_device(device: u32) -> Device {
    Device { major: device >> 8 & 0xfff, minor: device & 0xff | device >> 12 & 0xfff00 }
}

/// The chunk address of every chunk.
const HOLE: [u8; 4] = NULL_CHUNK.to_le_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chunk_holds_every_size_that_is_allowed() {
        for size in [1, 4096, 4097, 1 << 32, (1 << 32) + 1, tarpon_oci::limits::FILE_BYTES] {
            assert_eq!(chunk_count(size), 1, "{size}");
            assert!(BLOCK << chunk_bits(size) >= size);
        }
    }

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(1, 3), (4095, 0xf_ffff), (8, 256), (0, 1)] {
            let device = Device { major, minor };
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}

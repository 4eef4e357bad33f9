//! Numbers of the on-disk format, and the superblock.
//!
//! All numbers are little-endian. Only the output of [`super::write()`] can be represented here, and [`super::Image`] reads no more
//! than that.

use crate::Kind;

/// Block size, as a power of two. Blocks of 4 KiB are the only ones that every kernel supports.
pub(super) const BLOCK_BITS: u8 = 12;
/// Bytes of a block.
pub(super) const BLOCK: u64 = 1 << BLOCK_BITS;
/// Where the superblock starts.
pub(super) const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of the superblock.
pub(super) const SUPERBLOCK_BYTES: usize = 128;
/// First four bytes of the superblock.
pub(super) const MAGIC: u32 = 0xE0F5_E1E2;
/// Inodes start at multiples of this; a nid counts them.
pub(super) const SLOT: u64 = 32;

/// `feature_compat`: the superblock has a checksum; times are modification times.
pub(super) const COMPAT: u32 = 0x1 | 0x2;
/// `feature_incompat`: files may be chunked.
pub(super) const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// `feature_incompat`: there is a table of long xattr prefixes.
pub(super) const INCOMPAT_XATTR_PREFIXES: u32 = 0x40;

/// A chunk address that means "a hole".
pub(super) const NULL_CHUNK: u32 = u32::MAX;
/// Largest power of two for a chunk, in blocks.
pub(super) const CHUNK_BITS_MASK: u16 = 0x1f;

/// Number of an inode: its offset in the image in units of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u64);

/// Storage of the data of an inode (`i_format`, bits 1 to 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataLayout {
    /// In blocks of their own, one after the other.
    Plain,
    /// As `Plain`, but the bytes after the last whole block follow the inode.
    Inline,
    /// By a table of chunk addresses behind the inode. Here always holes.
    Chunked,
}

impl DataLayout {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Plain => 0,
            Self::Inline => 2,
            Self::Chunked => 4,
        }
    }

    pub(super) fn from_code(code: u16) -> Option<Self> {
        [Self::Plain, Self::Inline, Self::Chunked].into_iter().find(|layout| layout.code() == code)
    }
}

/// `S_IFMT` bits of a kind.
pub(super) fn type_bits(kind: Kind) -> u16 {
    match kind {
        Kind::Fifo => 0o010_000,
        Kind::CharDevice => 0o020_000,
        Kind::Directory => 0o040_000,
        Kind::BlockDevice => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
    }
}

/// The kind in a mode.
pub(super) fn kind_of_mode(mode: u16) -> Option<Kind> {
    ALL_KINDS.into_iter().find(|kind| type_bits(*kind) == mode & 0o170_000)
}

/// `file_type` of a directory entry.
pub(super) fn type_code(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::CharDevice => 3,
        Kind::BlockDevice => 4,
        Kind::Fifo => 5,
        Kind::Symlink => 7,
    }
}

/// The kind in a directory entry.
pub(super) fn kind_of_code(code: u8) -> Option<Kind> {
    ALL_KINDS.into_iter().find(|kind| type_code(*kind) == code)
}

const ALL_KINDS: [Kind; 6] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::CharDevice, Kind::BlockDevice, Kind::Fifo];

/// The contents of the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) incompat: u32,
    pub(super) root: u16,
    pub(super) inodes: u64,
    /// The modification time of compact inodes.
    pub(super) seconds: u64,
    pub(super) nanoseconds: u32,
    pub(super) blocks: u32,
    pub(super) xattr_block: u32,
    pub(super) prefix_count: u8,
    /// In units of four bytes.
    pub(super) prefix_start: u32,
    /// Whether the image has no xattrs except those that overlayfs reads. Our own extension: it is behind the end of the volume
    /// name, where the kernel does not look.
    pub(super) no_xattrs: bool,
    /// The version of the writer.
    pub(super) version: Version,
}

/// A version of the writer. The reader supports all, and only trees of the newest are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// No NUL follows the last name of a directory, so that the kernel does not find some of them.
    Unterminated,
    /// The current version.
    Current,
}

impl Version {
    /// The volume name, which `dump.erofs` and `file` show.
    fn volume_name(self) -> &'static [u8; 15] {
        match self {
            Self::Unterminated => b"tarpon tree v1\0",
            Self::Current => b"tarpon tree v2\0",
        }
    }

    fn from_volume_name(name: &[u8]) -> Option<Self> {
        [Self::Unterminated, Self::Current].into_iter().find(|version| version.volume_name() == name)
    }
}

/// Position of the volume name.
const VOLUME_NAME: std::ops::Range<usize> = 64..79;
/// Position of [`Superblock::no_xattrs`].
const NO_XATTRS_OFFSET: usize = 79;

impl Superblock {
    /// The bytes on disk, with a checksum of 0.
    pub(super) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let mut put = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_le_bytes());
        put(8, &COMPAT.to_le_bytes());
        put(12, &[BLOCK_BITS]);
        put(14, &self.root.to_le_bytes());
        put(16, &self.inodes.to_le_bytes());
        put(24, &self.seconds.to_le_bytes());
        put(32, &self.nanoseconds.to_le_bytes());
        put(36, &self.blocks.to_le_bytes());
        put(44, &self.xattr_block.to_le_bytes());
        put(VOLUME_NAME.start, self.version.volume_name());
        put(NO_XATTRS_OFFSET, &[u8::from(self.no_xattrs)]);
        put(80, &self.incompat.to_le_bytes());
        put(91, &[self.prefix_count]);
        put(92, &self.prefix_start.to_le_bytes());
        bytes
    }

    /// Parses the output of [`Superblock::encode`]. None for anything else.
    pub(super) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Self> {
        let known = INCOMPAT_CHUNKED_FILE | INCOMPAT_XATTR_PREFIXES;
        let superblock = Self {
            incompat: u32_at(bytes, 80),
            root: u16_at(bytes, 14),
            inodes: u64_at(bytes, 16),
            seconds: u64_at(bytes, 24),
            nanoseconds: u32_at(bytes, 32),
            blocks: u32_at(bytes, 36),
            xattr_block: u32_at(bytes, 44),
            prefix_count: bytes[91],
            prefix_start: u32_at(bytes, 92),
            no_xattrs: bytes[NO_XATTRS_OFFSET] == 1,
            version: Version::from_volume_name(&bytes[VOLUME_NAME])?,
        };
        let is_ours = u32_at(bytes, 0) == MAGIC
            && bytes[12] == BLOCK_BITS
            // No superblock extensions, metadata from block 0 on, no devices, directory blocks as large as blocks.
            && bytes[13] == 0
            && u32_at(bytes, 40) == 0
            && u16_at(bytes, 86) == 0
            && bytes[90] == 0
            && superblock.incompat & !known == 0
            && superblock.nanoseconds < 1_000_000_000;
        is_ours.then_some(superblock)
    }
}

/// Position of the checksum in the superblock.
pub(super) const CHECKSUM_OFFSET: usize = 4;

pub(super) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    bytes[offset..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes[offset..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

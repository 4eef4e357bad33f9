//! [`LayerIndex`]: the entries of a layer, and the places of the bytes of its files.

mod assembler;
mod claims;
mod common;
mod cut;
mod error;
mod name;
mod path;
mod path_table;
mod shared;
mod xattrs;

pub(crate) use assembler::{Assembler, Duplicates, NO_DIGEST};
pub use error::InvalidEntry;
pub use name::LayerName;
pub(crate) use name::is_marker;
pub use path::{InvalidPath, LayerPath};
use serde::{Deserialize, Serialize};
pub use shared::Shared;
use tarpon_oci::Digest;
pub use xattrs::InvalidXattr;
pub(crate) use xattrs::XattrSet;

use crate::spans::Checkpoint;

/// The content of a regular file, named by the sha256 of its bytes. If its chunks are of [`Codec::CheckedSpan`]: named by a hash of
/// its place.
pub type ObjectId = Digest;

/// One layer: its entries in layer order, and the chunks of its files.
///
/// Directories without an entry in the layer are not added: an entry's parent may be missing. The merge of layers takes it from
/// below, or creates it as `0755` root:root. No entry is below one that is not a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerIndex {
    /// Entries in the order of the layer. No path occurs twice, but a whiteout may name the path of an entry.
    pub entries: Vec<Entry>,
    /// Chunks of all files. Each content has a run of them ([`FileContent`]), ascending by object offset, without gap or overlap. Files
    /// of the same content may share it.
    pub chunks: Vec<Chunk>,
    /// The beginnings of the spans of its chunks of [`Codec::Deflate`] or [`Codec::CheckedSpan`], ascending by offset.
    pub checkpoints: Vec<Checkpoint>,
    /// Xattrs that the layer carried and that images may not set (`trusted.*`, `user.overlay.*`, …).
    pub dropped_xattrs: u64,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path from the layer's root. The root itself has the empty path.
    pub path: LayerPath,
    /// The kind.
    pub node: Node,
    /// Attributes. Meaningless (all zero) for hard links and whiteouts.
    pub attributes: Shared<Attributes>,
}

/// The kinds of entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A regular file.
    File(Shared<FileContent>),
    /// A symbolic link and its unchanged target. Boxed twice, so that it does not enlarge the many entries that are no links.
    Symlink(Box<Box<[u8]>>),
    /// Another name of the file at this path of the same image. Never itself. If the path is in this layer, its entry is neither a
    /// directory nor a hard link (chains are resolved). Otherwise it is in a lower layer.
    HardLink(Box<LayerPath>),
    /// A character device. Never 0:0, which overlayfs interprets as a whiteout.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// `.wh.NAME`: removes the entry at this path (already without the prefix) from the layers below.
    Whiteout,
    /// `.wh..wh..opq`: hides the content of the lower layers in the directory at this path.
    Opaque,
}

/// Content of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileContent {
    /// Size in bytes, at most [`tarpon_oci::limits::FILE_BYTES`].
    pub size: u64,
    /// The name of the content. For an empty file: the digest of no bytes.
    pub object: ObjectId,
    /// First of its chunks in [`LayerIndex::chunks`].
    pub first_chunk: u32,
    /// Number of its chunks; none for an empty file.
    pub chunk_count: u32,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Permission bits with setuid, setgid and sticky: `mode & 0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes that images may set, sorted by name, without duplicates.
    pub xattrs: Vec<Xattr>,
}

/// One extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Xattr {
    /// Name with its prefix: `user.note`, `security.capability`.
    pub name: Box<[u8]>,
    /// Any bytes.
    pub value: Box<[u8]>,
}

/// Seconds since 1970 and nanoseconds below 10⁹.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// May be negative.
    pub seconds: i64,
    /// Counted forward, also when the seconds are negative.
    pub nanoseconds: u32,
}

/// Numbers of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Below 2¹².
    pub major: u32,
    /// Below 2²⁰.
    pub minor: u32,
}

/// A piece of a file with a digest of its own: the unit of fetching and verifying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Offset in the file.
    pub object_offset: u64,
    /// Decoded bytes, never 0. At most [`tarpon_oci::limits::CHUNK_BYTES`], except where the place is
    /// [`ChunkPlace::Zeros`] or the codec is [`Codec::Raw`] or [`Codec::Stream`].
    pub size: u64,
    /// sha256 of the decoded bytes. For [`Codec::CheckedSpan`] that of the encoded bytes of the whole place. For [`ChunkPlace::Zeros`]
    /// not kept: all zero. [`Chunk::content_digest`] distinguishes them.
    pub digest: Digest,
    /// The place of its bytes.
    pub place: ChunkPlace,
}

impl Chunk {
    /// The digest of its bytes, if known: any bytes with this digest are the chunk.
    pub fn content_digest(&self) -> Option<&Digest> {
        (self.place != ChunkPlace::Zeros && self.place.names_content()).then_some(&self.digest)
    }
}

/// The place of the bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkPlace {
    /// None: it is all zeros and never fetched.
    Zeros,
    /// In the layer's blob.
    Blob {
        /// Their encoding.
        codec: Codec,
        /// First byte of the encoded piece in the blob; for [`Codec::Stream`] an offset in the *decoded* layer.
        offset: u64,
        /// Bytes from there that are sure to contain the whole piece. For [`Codec::Stream`] the decoded size.
        length: u64,
        /// Decoded bytes to skip before the chunk begins (eStargz `innerOffset`).
        skip: u64,
    },
}

impl ChunkPlace {
    /// As [`Codec::names_content`]. Zeros need no digest to be known.
    pub fn names_content(&self) -> bool {
        match self {
            Self::Zeros => true,
            Self::Blob { codec, .. } => codec.names_content(),
        }
    }
}

/// The encoding of a piece of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not encoded: an uncompressed tar.
    Raw,
    /// A gzip member starts at the offset. It may continue past the chunk, and the chunk into further members.
    Gzip,
    /// One or more zstd frames start at the offset.
    Zstd,
    /// A deflate block in the middle of a gzip member starts in the byte at the offset. Its window is in the [`Checkpoint`] of that
    /// offset. It may continue past the chunk, and into further members.
    Deflate,
    /// No random access: the layer must be decoded from its beginning, through its own compression.
    Stream,
    /// As [`Codec::Deflate`], also at the beginning of a member (behind its header), except that the digest of the decoded bytes is
    /// unknown: chunks have that of the encoded bytes, from the offset on and exactly as many as the length.
    CheckedSpan,
}

impl Codec {
    /// All codecs. Their positions, from 1, are their numbers.
    const ALL: [Self; 6] = [Self::Raw, Self::Gzip, Self::Zstd, Self::Stream, Self::Deflate, Self::CheckedSpan];

    /// The number of the codec in binary formats: 1 to 6. Zeros, which have no codec, are 0 there.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Raw => 1,
            Self::Gzip => 2,
            Self::Zstd => 3,
            Self::Stream => 4,
            Self::Deflate => 5,
            Self::CheckedSpan => 6,
        }
    }

    /// Whether the digest of a chunk is that of its content, and the digest of an object that of the whole. If not, decoded bytes
    /// are right because the encoded bytes are, and can never be checked again.
    pub fn names_content(self) -> bool {
        self != Self::CheckedSpan
    }

    /// The codec with this number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

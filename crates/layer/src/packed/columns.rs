//! The columns of a packed index.

use serde::{Deserialize, Serialize};

use crate::index::Xattr;
use crate::spans::Checkpoint;

/// Changes with the meaning of any column. Other versions are not read.
pub(super) const VERSION: u16 = 1;

/// One value for each entry, unless stated otherwise, in the order of the entries.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Columns {
    pub(super) version: u16,
    pub(super) kinds: Vec<u8>,
    /// Bytes of the path that are those of the path before ...
    pub(super) shared: Vec<u16>,
    /// ... and the rest, with a NUL behind it.
    pub(super) paths: Vec<u8>,
    /// Targets of symbolic and hard links, each with a NUL behind it.
    pub(super) targets: Vec<u8>,
    /// For device nodes.
    pub(super) devices: Vec<(u32, u32)>,
    /// Numbers in `owners`. For entries with attributes, as the two after it.
    pub(super) owner: Vec<u32>,
    /// Seconds since the entry before.
    pub(super) seconds: Vec<i64>,
    pub(super) nanoseconds: Vec<u32>,
    pub(super) owners: Vec<Owner>,
    /// For files.
    pub(super) sizes: Vec<u64>,
    /// For files that are not empty: twice the number of chunks, and one more if each has a digest of its own.
    pub(super) counts: Vec<u32>,
    pub(super) chunks: ChunkColumns,
    /// 32 bytes each: the object of a file that is not empty, then its chunks' where they have their own.
    pub(super) digests: Vec<u8>,
    /// One value each.
    pub(super) checkpoints: Vec<Checkpoint>,
    pub(super) dropped_xattrs: u64,
}

/// One value for each chunk, unless stated otherwise.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ChunkColumns {
    /// For files of several chunks.
    pub(super) sizes: Vec<u64>,
    /// Steps in `places`.
    pub(super) place: Vec<i32>,
    /// Relative to the end of the chunk before, if that was in the same place.
    pub(super) skip: Vec<i64>,
    /// Codec, offset from the end of the place before, length.
    pub(super) places: Vec<(u8, i64, u64)>,
}

/// Attributes that many entries share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) xattrs: Vec<Xattr>,
}

pub(super) mod kind {
    pub(in super::super) const DIRECTORY: u8 = 0;
    pub(in super::super) const FILE: u8 = 1;
    pub(in super::super) const SYMLINK: u8 = 2;
    pub(in super::super) const HARD_LINK: u8 = 3;
    pub(in super::super) const CHAR_DEVICE: u8 = 4;
    pub(in super::super) const BLOCK_DEVICE: u8 = 5;
    pub(in super::super) const FIFO: u8 = 6;
    pub(in super::super) const WHITEOUT: u8 = 7;
    pub(in super::super) const OPAQUE: u8 = 8;
}

//! Errors of TOCs.

use std::fmt;

use tarpon_oci::{DigestMismatch, limits};

use crate::Excess;
use crate::decode::DecodeError;
use crate::index::{InvalidEntry, InvalidPath, InvalidXattr};
use crate::tar::TarError;

/// A TOC that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TocError {
    /// The layer is valid, but must be streamed as a whole.
    #[error("the layer cannot be read piece by piece: {0}")]
    NotLazy(NotLazy),
    /// The TOC is not the one that the descriptor names.
    #[error("TOC: {0}")]
    Digest(#[from] DigestMismatch),
    /// The blob does not end in a footer, although it is claimed to be eStargz.
    #[error("the blob is claimed to be eStargz, but its footer is not: {0}")]
    Footer(&'static str),
    /// The fetched bytes are not the needed ones.
    #[error("the TOC needs bytes {needed_from} to {needed_to} of the blob, got {got}")]
    Incomplete {
        /// First byte needed.
        needed_from: u64,
        /// End of the needed bytes.
        needed_to: u64,
        /// Number of available bytes.
        got: usize,
    },
    /// The TOC's gzip or zstd is invalid.
    #[error("TOC: {0}")]
    Decode(#[from] DecodeError),
    /// The tar around an eStargz TOC is invalid.
    #[error("TOC: {0}")]
    Tar(#[from] TarError),
    /// The tar around an eStargz TOC contains something else.
    #[error("TOC: {0}")]
    Container(&'static str),
    /// The JSON is malformed, or an entry in it is wrong.
    #[error("TOC: {0}")]
    Json(String),
    /// It is larger than its encoded bytes allow.
    #[error("TOC: {0}")]
    Excess(#[from] Excess),
    /// Entries contradict each other.
    #[error("TOC entry {name:?}: {problem}")]
    Entry {
        /// Its name, printable.
        name: String,
        /// The problem.
        problem: EntryProblem,
    },
}

/// Why a layer must be streamed although its TOC is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLazy {
    /// Over [`limits::TOC_BYTES`] or [`limits::TOC_COMPRESSED_BYTES`].
    TocTooLarge(u64),
    /// A file without digest or with a chunk without digest.
    MissingDigest(String),
    /// A chunk over [`limits::CHUNK_BYTES`], or too deep in a member.
    ChunkTooLarge(String),
    /// An entry below a symbolic link: its meaning depends on the order of the tar.
    BelowSymlink(String),
    /// A name that is not UTF-8, which JSON cannot represent, but the tar can.
    NameNotUtf8(String),
    /// A file of zeros only, over [`limits::ZERO_FILE_BYTES`] or [`crate::ZEROS_BASE`].
    TooManyZeros(String),
}

impl fmt::Display for NotLazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TocTooLarge(size) => write!(f, "its TOC of {size} bytes is too large"),
            Self::MissingDigest(name) => write!(f, "its TOC has no digest for {name:?}"),
            Self::ChunkTooLarge(name) => {
                write!(f, "{name:?} has a chunk that needs more than {} bytes at once", limits::CHUNK_BYTES)
            }
            Self::BelowSymlink(name) => write!(f, "its TOC has {name:?} below a symbolic link"),
            Self::TooManyZeros(name) => {
                write!(f, "{name:?} is more zeros than are hashed for a table of this size")
            }
            Self::NameNotUtf8(name) => write!(f, "its TOC cannot hold the true name of {name:?}"),
        }
    }
}

/// The problem of one entry of a TOC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// Converted to [`TocError::NotLazy`].
    #[error("{0}")]
    NotLazy(NotLazy),
    /// See [`InvalidEntry`].
    #[error(transparent)]
    Entry(#[from] InvalidEntry),
    /// See [`InvalidXattr`].
    #[error(transparent)]
    Xattr(#[from] InvalidXattr),
    /// A field with an invalid value.
    #[error("{0} is missing, malformed or out of range")]
    Field(&'static str),
    /// An unknown type.
    #[error("unknown type {0:?}")]
    Type(String),
    /// A chunk that follows no regular file, or one other than it names.
    #[error("a chunk without its file")]
    StrayChunk,
    /// Chunks that leave gaps, overlap or end elsewhere than the file.
    #[error("the chunks do not cover the file")]
    Gap,
    /// The digest of the only chunk is not that of the file, or a file of no bytes has another digest.
    #[error("its digests contradict each other")]
    DigestsDiffer,
    /// An offset that is not in the data of the blob.
    #[error("it lies outside the blob's data")]
    OutOfBlob,
    /// Over [`limits::SPARSE_HOLE_BYTES`].
    #[error("the holes of the layer's files add up to more than {} bytes", limits::SPARSE_HOLE_BYTES)]
    Holes,
    /// Chunks of zstd:chunked ascend.
    #[error("its place in the blob overlaps with that of another chunk")]
    Overlap,
}

impl From<InvalidPath> for EntryProblem {
    fn from(error: InvalidPath) -> Self {
        Self::Entry(error.into())
    }
}

impl EntryProblem {
    pub(super) fn at(self, name: &str) -> TocError {
        match self {
            Self::NotLazy(reason) => TocError::NotLazy(reason),
            Self::Entry(InvalidEntry::BelowSymlink) => {
                TocError::NotLazy(NotLazy::BelowSymlink(crate::tar::printable(name.as_bytes())))
            }
            Self::Entry(InvalidEntry::TooManyZeros | InvalidEntry::Excess(Excess::Zeros)) => {
                TocError::NotLazy(NotLazy::TooManyZeros(crate::tar::printable(name.as_bytes())))
            }
            // As an excess of the JSON: only reading it by its table of contents costs too much.
            Self::Entry(InvalidEntry::Excess(excess)) => TocError::Excess(excess),
            problem => TocError::Entry { name: crate::tar::printable(name.as_bytes()), problem },
        }
    }
}

//! Errors of tars.

use std::fmt;
use std::io;

use tarpon_oci::limits;

use crate::index::InvalidXattr;

/// A tar that cannot be read: where, and why.
#[derive(Debug)]
pub struct TarError {
    /// Offset of the header (or data) in the decoded layer.
    pub offset: u64,
    /// Name of the entry as far as it is known, printable.
    pub entry: Option<String>,
    /// Name of the entry before it, printable.
    pub after: Option<String>,
    /// The problem.
    pub problem: TarProblem,
}

/// The problem of a tar.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarProblem {
    /// The stream failed (decompression, network).
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream ends in a header or in the data of an entry.
    #[error("the archive ends in the middle of an entry")]
    Truncated,
    /// The block is not a header.
    #[error("the header's checksum is wrong")]
    Checksum,
    /// A block of zeros must be followed by another one or by the end.
    #[error("a lone block of zeros is followed by more entries")]
    LoneZeroBlock,
    /// An invalid number.
    #[error("the header's {0} is not a number in its range")]
    Number(&'static str),
    /// An invalid PAX record.
    #[error("malformed extended header: {0}")]
    Pax(&'static str),
    /// A global header with records that change entries: GNU tar applies them, container tools do not.
    #[error("a global extended header sets {0:?}, which tools disagree about")]
    GlobalRecord(String),
    /// Two of a kind before one entry, or one before a global header.
    #[error("extension headers that tools disagree about: {0}")]
    Extensions(&'static str),
    /// Extension headers without an entry.
    #[error("the archive ends after an extension header")]
    DanglingExtension,
    /// Over [`limits::TAR_EXTENSION_BYTES`].
    #[error("an extension header is longer than {} bytes", limits::TAR_EXTENSION_BYTES)]
    ExtensionTooLong,
    /// Volume labels, multi-volume parts and the like.
    #[error("unsupported type of entry {:?}", char::from(*.0))]
    Type(u8),
    /// Data where the type of entry has none: some tools skip it, others read it as headers.
    #[error("an entry of this type has no data, but {0} bytes are claimed")]
    UnexpectedData(u64),
    /// Go reads a file, GNU tar a directory.
    #[error("a regular file whose name ends in a slash")]
    FileNamedAsDirectory,
    /// Over [`limits::FILE_BYTES`].
    #[error("a file of {0} bytes is larger than this program handles")]
    FileTooLarge(u64),
    /// A sparse map that contradicts itself or its data.
    #[error("malformed sparse file: {0}")]
    Sparse(&'static str),
    /// Over [`limits::SPARSE_HOLE_BYTES`].
    #[error("the holes of the sparse files add up to more than {} bytes", limits::SPARSE_HOLE_BYTES)]
    Holes,
    /// See [`InvalidXattr`].
    #[error(transparent)]
    Xattr(#[from] InvalidXattr),
}

impl fmt::Display for TarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, problem, .. } = self;
        match (&self.entry, &self.after) {
            (Some(entry), _) => write!(f, "tar entry {entry:?} at offset {offset}: {problem}"),
            (None, Some(after)) => write!(f, "tar at offset {offset}, after entry {after:?}: {problem}"),
            (None, None) => write!(f, "tar at offset {offset}: {problem}"),
        }
    }
}

impl std::error::Error for TarError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            TarProblem::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// A name for messages: printable, not longer than a line.
pub(crate) fn printable(name: &[u8]) -> String {
    const LIMIT: usize = 160;
    let mut text = name[..name.len().min(LIMIT)].escape_ascii().to_string();
    if name.len() > LIMIT {
        text.push_str("...");
    }
    text
}

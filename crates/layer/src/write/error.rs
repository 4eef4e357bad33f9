//! Errors of writing a layer.

use std::io;

use tarpon_oci::limits;

use crate::Excess;
use crate::index::{InvalidEntry, InvalidXattr};
use crate::tar::TarError;
use crate::toc::{ClaimError, TocError};

/// Why a layer could not be written in another format. The partly written blob is useless.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The tar is invalid, or reading it failed.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The blob could not be written, or compression failed.
    #[error("writing the blob: {0}")]
    Blob(#[source] io::Error),
    /// Reading the tar failed outside of its entries.
    #[error("reading the tar: {0}")]
    Read(#[source] io::Error),
    /// The layer costs more than its size allows.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// An entry that no reader accepts.
    #[error("tar entry {name:?}: {problem}")]
    Entry {
        /// Its name, printable.
        name: String,
        /// The problem.
        problem: InvalidEntry,
    },
    /// An xattr that no reader accepts.
    #[error("tar entry {name:?}: {problem}")]
    Xattr {
        /// Name of the entry, printable.
        name: String,
        /// The problem.
        problem: InvalidXattr,
    },
    /// An entry that a tar can contain and the table of contents cannot.
    #[error("tar entry {name:?}: {problem}, which the table of contents cannot hold")]
    Unrepresentable {
        /// Its name, printable.
        name: String,
        /// The part that cannot be represented.
        problem: Unrepresentable,
    },
    /// The tar repeats names in a way whose meaning depends on the order of its entries.
    #[error("tar entry {0:?}: its meaning depends on the order of entries, which the table of contents cannot hold")]
    OrderMatters(String),
    /// The diffID must stay, but the tar contains a table of contents, which would have to be removed.
    #[error("the layer is eStargz already: its table of contents cannot be replaced without changing its diffID")]
    HoldsToc,
    /// Over [`limits::TOC_BYTES`] or [`limits::TOC_COMPRESSED_BYTES`].
    #[error(
        "the table of contents would be larger than {} bytes, or {} compressed",
        limits::TOC_BYTES,
        limits::TOC_COMPRESSED_BYTES
    )]
    TocTooLarge,
    /// Our own reader refuses the table of contents.
    #[error("the new layer cannot be read: {0}")]
    Toc(#[from] TocError),
    /// Our own reader refuses the annotations.
    #[error("the new layer cannot be read: {0}")]
    Claim(#[from] ClaimError),
    /// An option out of its range.
    #[error("{0}")]
    Options(&'static str),
}

/// The parts of an entry that a table of contents cannot represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unrepresentable {
    /// JSON is text. Other writers put U+FFFD there, and readers then see a wrong name. So U+FFFD itself is refused too.
    #[error("a name that is not UTF-8 or contains U+FFFD")]
    Name,
    /// As [`Unrepresentable::Name`].
    #[error("a link target that is not UTF-8 or contains U+FFFD")]
    Link,
    /// As [`Unrepresentable::Name`].
    #[error("an xattr whose name is not UTF-8 or contains U+FFFD")]
    Xattr,
    /// RFC 3339 has four digits for the year.
    #[error("a time outside of the years 2 to 9999")]
    Time,
    /// The blob does not contain the file's holes, so its chunks cannot be described.
    #[error("a sparse file")]
    Sparse,
}

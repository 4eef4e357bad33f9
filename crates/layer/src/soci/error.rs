//! Errors of ztocs.

use tarpon_oci::limits;

use crate::index::{InvalidEntry, InvalidPath, InvalidXattr};

/// A ztoc that cannot be used. Its layer can still be streamed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZtocError {
    /// The bytes are not the FlatBuffer of a ztoc, or are truncated.
    #[error("it is malformed: {0}")]
    Malformed(&'static str),
    /// Valid, but of a kind that is not read piece by piece.
    #[error("it is {0}, which is not read piece by piece")]
    NotLazy(&'static str),
    /// It describes another layer.
    #[error("it is about a layer of {claimed} bytes, not of {is}")]
    OtherLayer {
        /// Size of the layer according to the ztoc.
        claimed: u64,
        /// Size of the layer.
        is: u64,
    },
    /// Over [`limits::ZTOC_BYTES`].
    #[error("it has {0} bytes, more than {limit}", limit = limits::ZTOC_BYTES)]
    TooLarge(u64),
    /// An entry that is not valid in a layer.
    #[error("entry {name:?}: {problem}")]
    Entry {
        /// Its name, printable.
        name: String,
        /// The problem.
        problem: ZtocProblem,
    },
}

/// The problem of an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZtocProblem {
    /// See [`InvalidEntry`].
    #[error(transparent)]
    Entry(#[from] InvalidEntry),
    /// See [`InvalidXattr`].
    #[error(transparent)]
    Xattr(#[from] InvalidXattr),
    /// A field with an invalid value.
    #[error("its {0} is missing, malformed or out of range")]
    Field(&'static str),
    /// It overlaps with the entry before, or lies outside of the tar.
    #[error("it is not where an entry of a tar can be")]
    Place,
    /// Its holes are not in the tar, and the index does not contain their places.
    #[error("it is a sparse file, which such an index cannot describe")]
    Sparse,
    /// Over [`limits::CHUNK_ENCODED_BYTES`] or [`limits::MEMBER_BYTES`].
    #[error("it lies in a span that is too large to be fetched and decoded at once")]
    SpanTooLarge,
}

impl From<InvalidPath> for ZtocProblem {
    fn from(error: InvalidPath) -> Self {
        Self::Entry(error.into())
    }
}

//! Why a read gave no bytes, in the words that reach a log line.

use std::sync::Arc;
use std::time::Duration;

use tarpon_blob::{Fault, SourceError};
use tarpon_layer::ObjectId;

use crate::ids::PieceKey;

/// A failed read. Cheap to clone: all waiters of one request get the same one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// No image that is registered has the object.
    #[error("object {0} belongs to no image that is mounted")]
    UnknownObject(ObjectId),
    /// Nobody could deliver the bytes.
    #[error("fetching object {object} of {image}: {cause}")]
    Fetch {
        /// What was read.
        object: ObjectId,
        /// The image that it was fetched for.
        image: Arc<str>,
        /// What failed.
        cause: PieceError,
    },
    /// All chunks have the digests they should have, the whole object has not: its index lies.
    #[error("object {0} is not what its index promises: every chunk matches, the whole does not")]
    Poisoned(ObjectId),
    /// The layer that it lies in is not what the image's index says, or not what its digest says.
    #[error("object {object} of {image} is not read out of layer {layer}: {reason}")]
    Distrusted {
        /// What was read.
        object: ObjectId,
        /// The image that has it.
        image: Arc<str>,
        /// Digest of the layer.
        layer: tarpon_oci::Digest,
        /// What was found out.
        reason: Arc<str>,
    },
    /// Images contradict each other about what the object consists of, and nobody can tell (yet) who is right.
    #[error("images contradict each other about object {object}, and fetching it whole failed: {reason}")]
    Disputed {
        /// What was read.
        object: ObjectId,
        /// What failed.
        reason: Arc<str>,
    },
    /// More bytes were asked for at once than a read may have.
    #[error("a read of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// What was asked for.
        length: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The object is here, but its file cannot be read.
    #[error("reading object {object} from the store: {reason}")]
    Local {
        /// What was read.
        object: ObjectId,
        /// What the disk said.
        reason: Arc<str>,
    },
}

/// Why one piece of a layer gave no bytes.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PieceError {
    /// The source gave up; it has retried already.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The bytes that came are not the ones that the digest names, twice.
    #[error("layer {layer}, byte {offset}: {reason}")]
    Corrupt {
        /// Digest of the layer.
        layer: tarpon_oci::Digest,
        /// Where in its blob.
        offset: u64,
        /// What did not match.
        reason: Arc<str>,
    },
    /// The source accepted the request and then went silent.
    #[error("no byte from the source for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The source failed, and since then a probe has failed as well.
    #[error("the source does not answer: {0}")]
    Resting(Arc<PieceError>),
    /// The bytes did not arrive within the deadline of a read. The request may go on in the background.
    #[error("not here after {} s", .0.as_secs())]
    Late(Duration),
    /// The piece is too large to be checked in memory and the store has no room for it.
    #[error("a piece of {0} bytes can only be checked on disk, and the store takes nothing")]
    NoRoom(u64),
    /// The table describes something that no decoder of this version may touch.
    #[error("the chunk table asks for the impossible: {0}")]
    BadTable(Arc<str>),
    /// Everybody who wanted the piece has gone, or read-ahead found no room. A reader asks again.
    #[error("cancelled")]
    Cancelled,
}

impl PieceError {
    pub(crate) fn corrupt(piece: &PieceKey, reason: &str) -> Self {
        Self::Corrupt { layer: piece.layer, offset: piece.offset, reason: reason.into() }
    }

    /// Whether the blob that was asked for could not be had, or was not what it should be.
    pub(crate) fn is_of_the_blob(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Source(_) | Self::Stalled(_))
    }

    /// Whether the source did not answer: then this says nothing about the piece, and something about all others of the source.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Source(error) => matches!(error.fault, Fault::Unavailable | Fault::Timeout),
            Self::Stalled(_) | Self::Resting(_) | Self::Late(_) => true,
            _ => false,
        }
    }

    /// Whether another place that has the same content may do better.
    pub(crate) fn another_image_may_help(&self) -> bool {
        !matches!(self, Self::NoRoom(_) | Self::Cancelled)
    }
}

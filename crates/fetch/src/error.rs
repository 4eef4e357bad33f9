//! Why a read returned no bytes, in the words that reach a log line.

use std::sync::Arc;
use std::time::Duration;

use tarpon_blob::{Fault, SourceError};
use tarpon_layer::ObjectId;

use crate::ids::PieceKey;

/// A failed read. Cheap to clone: all waiters of one request get the same one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// No image that is registered has the object.
    #[error("object {0} belongs to no mounted image")]
    UnknownObject(ObjectId),
    /// No source could deliver the bytes.
    #[error("fetching object {object} of {image}: {cause}")]
    Fetch {
        /// The object that was read.
        object: ObjectId,
        /// The image that it was fetched for.
        image: Arc<str>,
        /// The failure.
        cause: PieceError,
    },
    /// All chunks match their digests, but the whole object does not: its index is wrong.
    #[error("object {0} is not what its index states: every chunk matches, the whole does not")]
    Poisoned(ObjectId),
    /// The layer of the object differs from the image's index, or from its digest.
    #[error("object {object} of {image} is not read from layer {layer}: {reason}")]
    Distrusted {
        /// The object that was read.
        object: ObjectId,
        /// The image that has it.
        image: Arc<str>,
        /// Digest of the layer.
        layer: tarpon_oci::Digest,
        /// The difference found.
        reason: Arc<str>,
    },
    /// Images contradict each other about the chunks of the object, and it cannot be decided (yet) which one is right.
    #[error("images contradict each other about object {object}, and fetching it whole failed: {reason}")]
    Disputed {
        /// The object that was read.
        object: ObjectId,
        /// The failure.
        reason: Arc<str>,
    },
    /// A read requested more bytes than the limit.
    #[error("a read of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Requested bytes.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// The object is local, but its file cannot be read.
    #[error("reading object {object} from the store: {reason}")]
    Local {
        /// The object that was read.
        object: ObjectId,
        /// The error of the disk.
        reason: Arc<str>,
    },
}

/// Why one piece of a layer could not be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PieceError {
    /// The source gave up; it has retried already.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The received bytes did not match the digest, twice.
    #[error("layer {layer}, byte {offset}: {reason}")]
    Corrupt {
        /// Digest of the layer.
        layer: tarpon_oci::Digest,
        /// Offset in its blob.
        offset: u64,
        /// The mismatch.
        reason: Arc<str>,
    },
    /// The source accepted the request and then went silent.
    #[error("no byte from the source for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The source failed, and since then a probe has failed as well.
    #[error("the source does not answer: {0}")]
    Resting(Arc<PieceError>),
    /// The bytes did not arrive within the deadline of a read. The request may go on in the background.
    #[error("not received within {} s", .0.as_secs())]
    Late(Duration),
    /// The piece is too large to be checked in memory and the store has no room for it.
    #[error("a piece of {0} bytes can only be checked on disk, and the store accepts nothing")]
    NoRoom(u64),
    /// The table describes an encoding that no decoder of this version may process.
    #[error("the chunk table is wrong: {0}")]
    BadTable(Arc<str>),
    /// Every caller that wanted the piece is gone, or read-ahead found no room. A reader retries.
    #[error("cancelled")]
    Cancelled,
}

impl PieceError {
    pub(crate) fn corrupt(piece: &PieceKey, reason: &str) -> Self {
        Self::Corrupt { layer: piece.layer, offset: piece.offset, reason: reason.into() }
    }

    /// Whether the requested blob was unavailable, or had wrong content.
    pub(crate) fn is_of_the_blob(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Source(_) | Self::Stalled(_))
    }

    /// Whether the source did not answer. Such a failure concerns all pieces of the source, and not this one in particular.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Source(error) => matches!(error.fault, Fault::Unavailable | Fault::Timeout),
            Self::Stalled(_) | Self::Resting(_) | Self::Late(_) => true,
            _ => false,
        }
    }

    /// Whether the source refused, and was not silent.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Source(error) if error.fault == Fault::Unavailable)
    }

    /// Whether another source of the same content may succeed.
    pub(crate) fn another_image_may_help(&self) -> bool {
        !matches!(self, Self::NoRoom(_) | Self::Cancelled)
    }
}

//! Plain gzip layers with a table of contents beside them: the ztoc of a SOCI index.
//!
//! A ztoc is a FlatBuffer with the entries of the tar, the places where decoding can restart (checkpoints, each with the 32 KiB
//! before it), and for each span between two of them the digest of its *compressed* bytes. There are no digests of contents. So:
//!
//! - A chunk is the part of a file in one span. Its digest is that of the span's encoded bytes ([`Codec::CheckedSpan`]): the
//!   reader compares first and then decodes.
//! - An object is named by a hash of the digest of the ztoc and its place in the tar ([`object_name`]). The decoded
//!   content of a span depends on its bytes and on its window, and the ztoc decides both: objects of one name have one list of
//!   chunks and one content. The name is not a digest of the content, and must not be used as one.
//!
//! The entries are in the order of the tar and have the same meaning as there, so that the layer shows the same tree as when it is
//! streamed.
//!
//! [`Codec::CheckedSpan`]: crate::Codec::CheckedSpan

mod build;
mod error;
mod flat;
mod zinfo;

pub use build::{Options, index, index_within};
pub use error::{ZtocError, ZtocProblem};

use tarpon_oci::{Digest, Hasher};

use crate::index::ObjectId;

/// No other hash that names an object has input with this prefix.
const DOMAIN: &[u8] = b"tarpon: object of a ztoc, version 2\0";

/// The name of the file whose `size` bytes are at `offset` of the decoded layer that the ztoc describes.
///
/// It is the complement of a digest: the digest itself is the true name of a file with the hashed input, which any image can contain.
pub fn object_name(ztoc: &Digest, offset: u64, size: u64) -> ObjectId {
    let mut hasher = Hasher::new();
    hasher.update(DOMAIN);
    hasher.update(ztoc.as_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(&size.to_le_bytes());
    ObjectId::from_bytes(hasher.finish().as_bytes().map(|byte| !byte))
}

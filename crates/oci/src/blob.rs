//! A blob as it is asked for: by digest, with the size its descriptor promised.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// The name and size of a blob in a registry, layout or archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blob {
    /// Names the blob.
    pub digest: Digest,
    /// Length in bytes, from the descriptor. A source that holds another length serves bad data.
    pub size: u64,
}

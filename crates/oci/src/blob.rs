//! A blob to request: its digest, and the size in its descriptor.

use serde::{Deserialize, Serialize};

use crate::Digest;

/// The name and size of a blob in a registry, layout or archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Blob {
    /// The name of the blob.
    pub digest: Digest,
    /// Length in bytes, from the descriptor. A source that holds another length serves bad data.
    pub size: u64,
}

//! Descriptors: references to blobs in a manifest or index.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::platform::RawPlatform;
use crate::{Blob, Digest, InvalidManifest, MediaType, Platform, limits};

/// The reference to a blob in a manifest or index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The type of the blob.
    pub media_type: MediaType,
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// Free-form metadata. TOC formats store their trust anchor here.
    pub annotations: BTreeMap<String, String>,
    /// The platform of a manifest in an index.
    pub platform: Option<Platform>,
    /// The kind of an artifact. Set for manifests that are not runnable images (SOCI indexes, signatures).
    pub artifact_type: Option<String>,
    /// Other locations of the blob. Kept for messages, never fetched from.
    pub urls: Vec<String>,
}

impl Descriptor {
    /// The blob to request from a source.
    pub fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }
}

/// A descriptor in its wire format.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawDescriptor {
    media_type: String,
    digest: String,
    size: u64,
    annotations: Option<BTreeMap<String, String>>,
    platform: Option<RawPlatform>,
    artifact_type: Option<String>,
    urls: Option<Vec<String>>,
}

impl TryFrom<RawDescriptor> for Descriptor {
    type Error = InvalidManifest;

    fn try_from(raw: RawDescriptor) -> Result<Self, InvalidManifest> {
        let digest = raw.digest.parse().map_err(InvalidManifest::Digest)?;
        if raw.size > limits::BLOB_BYTES {
            return Err(InvalidManifest::BlobTooLarge { digest, size: raw.size });
        }
        Ok(Self {
            media_type: MediaType::parse(&raw.media_type),
            digest,
            size: raw.size,
            annotations: raw.annotations.unwrap_or_default(),
            platform: raw.platform.map(Platform::from),
            artifact_type: raw.artifact_type.filter(|kind| !kind.is_empty()),
            urls: raw.urls.unwrap_or_default(),
        })
    }
}

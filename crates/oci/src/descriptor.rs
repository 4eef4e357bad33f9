//! Descriptors: how a manifest or index names a blob.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::platform::RawPlatform;
use crate::{Blob, Digest, InvalidManifest, MediaType, Platform, limits};

/// What a manifest or index says about a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// What the blob is.
    pub media_type: MediaType,
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// Free-form facts; TOC formats keep their trust anchor here.
    pub annotations: BTreeMap<String, String>,
    /// The platform of a manifest in an index.
    pub platform: Option<Platform>,
    /// The kind of an artifact; set on what is no runnable image (SOCI indexes, signatures).
    pub artifact_type: Option<String>,
    /// Other places the blob may be at. Kept for messages; never fetched from.
    pub urls: Vec<String>,
}

impl Descriptor {
    /// The blob to ask a source for.
    pub fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }
}

/// A descriptor as it is on the wire.
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

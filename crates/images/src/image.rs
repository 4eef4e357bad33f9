//! Requests for images, and prepared images.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarpon_oci::{Digest, IndexLock, IndexRepo, Platform, Source};
use tarpon_registry::Stats;
use tarpon_store::{ImageRecord, Verification};

use crate::access::Access;

/// Whether to query the registry for a tag that was resolved before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// Only when the store has no image of this name.
    #[default]
    Missing,
    /// Query; if the registry is unreachable, use the store's image.
    Newer,
    /// Query, and fail without a response.
    Always,
    /// Never.
    Never,
}

/// Which index may replace missing tables of contents of an image's layers ([`Rules`](crate::index::rules::Rules)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IndexChoice {
    /// None: such layers are streamed.
    #[default]
    None,
    /// The user chose nothing: one that an index repository of the user lists, or that a key signed which the policy names for the image.
    Unset,
    /// The index with this digest, which the user vouches for.
    Pinned(Digest),
    /// The index that the lock pins for the image, else as [`IndexChoice::Unset`]. The author of the lock is trusted.
    Locked(Arc<IndexLock>),
    /// Whichever the registry of the image or an index repository lists for the image.
    Registry,
    /// One that they list, if a key signed it that the policy names for the image or for the index repository.
    Signed,
}

impl FromStr for IndexChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "registry" => Ok(Self::Registry),
            "signed" => Ok(Self::Signed),
            digest => {
                digest.parse().map(Self::Pinned).map_err(|_| "expected none, signed, registry or a digest".to_owned())
            }
        }
    }
}

/// Limits on what preparing an image, or pulling it, fetches of its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerLimits {
    /// Most bytes of layers per second. Manifests and indexes, which are small, come at once.
    pub rate: Option<NonZeroU64>,
    /// Whether a layer without a table of contents may be streamed whole. Otherwise its image is not prepared.
    pub may_stream: bool,
}

impl Default for LayerLimits {
    fn default() -> Self {
        Self { rate: None, may_stream: true }
    }
}

/// The profile of a start that was predicted, and not recorded. Where the wanted start is the default one, and none was recorded, it serves
/// instead.
pub const PREDICTED_PROFILE: &str = "predicted";
/// The default profile of a start.
pub const DEFAULT_PROFILE: &str = "default";

/// A requested image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRequest {
    /// The image, as the user wrote it.
    pub text: String,
    /// The same, parsed.
    pub source: Source,
    /// The platform.
    pub platform: Platform,
    /// Whether the user named the platform: then no other is accepted.
    pub platform_named: bool,
    /// Whether to query the registry again.
    pub pull: Pull,
    /// Which index may be used.
    pub index: IndexChoice,
    /// Where indexes of the image may be, besides its own repository.
    pub index_repos: Vec<IndexRepo>,
    /// Profile of the start whose boot pack is used, out of an index's packs. None: no boot pack.
    pub profile: Option<String>,
    /// Whether a command starts in the image at once, so that a predicted boot pack is fetched before something in it is read.
    pub starts: bool,
    /// How to access it.
    pub access: Access,
    /// What may be fetched of its layers to prepare it.
    pub limits: LayerLimits,
}

impl ImageRequest {
    /// Where indexes of the image may be in the index repositories.
    pub fn index_sources(&self) -> impl Iterator<Item = Source> {
        self.index_repos.iter().filter_map(|repo| repo.place(&self.source))
    }

    /// The image that `source`, written as `text`, names, as it is in the registry or the store: no index, no boot pack, no credentials.
    /// Change the fields that should differ.
    pub fn new(text: impl Into<String>, source: Source, platform: Platform) -> Self {
        Self {
            text: text.into(),
            source,
            platform,
            platform_named: false,
            pull: Pull::default(),
            index: IndexChoice::None,
            index_repos: Vec::new(),
            profile: None,
            starts: false,
            access: Access::default(),
            limits: LayerLimits::default(),
        }
    }
}

/// An image whose record is complete in the store: it can be listed and mounted without contacting any source.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The image, as the user wrote it.
    pub text: String,
    /// Its record.
    pub record: ImageRecord,
    /// How to access its blobs.
    pub access: Access,
    /// Where indexes and boot packs of the image may be, besides its own repository: names of sources.
    pub index_places: Vec<String>,
    /// Fallbacks to something slower, one line each.
    pub fallbacks: Vec<String>,
    /// Requests to its source to prepare it now, and bytes received.
    pub fetched: Stats,
}

impl Prepared {
    /// The requested image, with its record.
    pub(crate) fn of(request: &ImageRequest, record: ImageRecord, fallbacks: Vec<String>) -> Self {
        let index_places = request.index_sources().map(|place| place.to_string()).collect();
        Self {
            text: request.text.clone(),
            record,
            access: request.access.clone(),
            index_places,
            fallbacks,
            fetched: Stats::default(),
        }
    }

    /// The same, after these requests.
    pub(crate) fn after(self, fetched: Stats) -> Self {
        Self { fetched, ..self }
    }

    /// Digest of the manifest, to which a mount of it is pinned.
    pub fn manifest(&self) -> &Digest {
        &self.record.manifest
    }

    /// Whether every layer was seen whole locally and matches manifest and config.
    pub fn is_verified(&self) -> bool {
        seen_whole(&self.record)
    }
}

/// Whether every byte of every layer was seen when the record was written.
pub(crate) fn seen_whole(record: &ImageRecord) -> bool {
    record.layers.iter().all(|layer| layer.verification == Verification::DiffId)
}

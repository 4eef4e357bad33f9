//! The tier of an image: how it is opened, and as a part of the image's source.

use std::sync::Arc;

use tarpon_blob::BlobSource;
use tarpon_oci::Source;
use tarpon_registry::{Repository, Stats};
use tarpon_tier::{Tier, TierLocation, TierOptions, TieredBlobs};

use crate::access::Access;

/// A tier, or why it is not used. It is never needed: without it, everything comes from the registry.
pub type OpenedTier = Result<Arc<Tier>, UnusableTier>;

/// A tier that cannot be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the tier {location} is not used: {why}")]
pub struct UnusableTier {
    /// Its URL.
    pub location: TierLocation,
    /// Why, in one line.
    pub why: String,
}

/// The tier that is used for an image. None for a layout or an archive, which is as near as a tier.
pub fn location_for<'a>(source: &Source, access: &'a Access) -> Option<&'a TierLocation> {
    access.tier.as_ref().filter(|_| matches!(source, Source::Registry(_)))
}

/// Opens a tier. Nothing is requested yet.
pub fn open(location: &TierLocation, options: &TierOptions) -> OpenedTier {
    Tier::open(location, options).map_err(|error| UnusableTier { location: location.clone(), why: error.to_string() })
}

/// Opens the tier for an image, with the credentials in the environment of this process.
pub(crate) fn open_for(source: &Source, access: &Access) -> Option<OpenedTier> {
    let location = location_for(source, access)?;
    Some(open(location, &TierOptions::from_environment(location)))
}

/// What was transferred from a tier.
pub fn stats(tier: &Tier) -> Stats {
    let account = tier.account();
    Stats { requests: account.requests, bytes: account.bytes }
}

/// The blobs of a repository, from the tier where it has them.
pub(crate) fn blobs(repository: &Repository, tier: Option<&Arc<Tier>>) -> Arc<dyn BlobSource> {
    match tier {
        Some(tier) => Arc::new(TieredBlobs::new(tier.clone(), repository.blobs())),
        None => repository.blobs(),
    }
}

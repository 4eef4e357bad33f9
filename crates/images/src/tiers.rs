//! The tier of an image: how it is opened, and as a part of the image's source.

use std::sync::Arc;

use tarpon_blob::BlobSource;
use tarpon_oci::Source;
use tarpon_registry::{Credentials, EndpointAccount, EndpointCounts, Repository, Stats};
use tarpon_tier::{Tier, TierLocation, TierOptions, TieredBlobs};

use crate::access::Access;
use crate::sources::OpenedImage;

/// A tier, or why it is not used. It is never needed: without it, everything comes from the registry.
pub type OpenedTier = Result<Arc<Tier>, String>;

/// The tier that is used for an image. None for a layout or an archive, which is as near as a tier.
pub fn location_for<'a>(source: &Source, access: &'a Access) -> Option<&'a TierLocation> {
    access.tier.as_ref().filter(|_| matches!(source, Source::Registry(_)))
}

/// Opens a tier. Nothing is requested yet.
pub fn open(location: &TierLocation, options: &TierOptions) -> OpenedTier {
    Tier::open(location, options).map_err(|error| format!("the tier {location} is not used: {error}"))
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

/// An opened image whose blobs may be in a tier.
pub struct TieredImage {
    repository: Arc<Repository>,
    tier: Option<Arc<Tier>>,
}

impl TieredImage {
    /// The image of a repository.
    pub fn new(repository: Arc<Repository>, tier: Option<Arc<Tier>>) -> Self {
        Self { repository, tier }
    }

    fn account_of_tier(&self) -> Option<EndpointAccount> {
        let tier = self.tier.as_ref()?;
        let account = tier.account();
        let wait_millis = u64::try_from(account.wait.as_millis()).unwrap_or(u64::MAX);
        let counts = EndpointCounts {
            requests: account.requests,
            bytes: account.bytes,
            wait_millis,
            failures: account.failures,
        };
        let host = tier.location().to_string();
        Some(EndpointAccount { host, counts, rest: account.rest, last_failure: account.last_failure })
    }
}

/// The blobs of a repository, from the tier where it has them.
pub(crate) fn blobs(repository: &Repository, tier: Option<&Arc<Tier>>) -> Arc<dyn BlobSource> {
    match tier {
        Some(tier) => Arc::new(TieredBlobs::new(tier.clone(), repository.blobs())),
        None => repository.blobs(),
    }
}

impl OpenedImage for TieredImage {
    fn blobs(&self) -> Arc<dyn BlobSource> {
        blobs(&self.repository, self.tier.as_ref())
    }

    fn stats(&self) -> Stats {
        self.tier.as_ref().map_or_else(Stats::default, |tier| stats(tier)) + self.repository.stats()
    }

    /// The tier comes first, as it is asked first.
    fn accounts(&self) -> Vec<EndpointAccount> {
        self.account_of_tier().into_iter().chain(self.repository.accounts()).collect()
    }

    fn has_tier(&self) -> bool {
        self.tier.is_some()
    }

    fn ignores_ranges(&self) -> bool {
        self.repository.ignores_ranges()
    }

    fn replace_credentials(&self, credentials: Credentials) {
        self.repository.replace_credentials(credentials);
    }
}

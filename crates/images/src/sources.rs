//! [`Sources`]: how a server opens images, and where their bytes are received and decoded.

use std::fmt::Debug;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tarpon_blob::BlobSource;
use tarpon_layer::decode::{self, Decoder};
use tarpon_oci::Digest;
use tarpon_registry::{Credentials, EndpointAccount, EndpointCounts, Repository, Stats};
use tarpon_store::Store;
use tarpon_tier::Tier;

use crate::access::{self, Access};
use crate::error::{ErrorKind, Result, ResultExt as _};
use crate::prepare::complete::{Completing, Completion};
use crate::tiers::{self, OpenedTier, UnusableTier};

/// Opens images whose records exist. Its implementations differ in the process that receives and decodes their bytes.
pub trait Sources: Debug + Send + Sync {
    /// As [`access::open_later`].
    ///
    /// # Errors
    /// The image's name or the options are invalid.
    fn open_later(&self, image: &str, access: &Access) -> Result<Arc<dyn OpenedImage>>;

    /// Decodes what the images' sources return.
    fn decoder(&self) -> Arc<dyn Decoder>;

    /// Opens the completion of an image in the store, which reads its layers from `source`.
    ///
    /// # Errors
    /// As [`Completion::open`].
    fn complete(
        &self,
        store: Store,
        manifest: Digest,
        source: Arc<dyn BlobSource>,
    ) -> BoxFuture<'static, Result<Box<dyn Completing>>>;
}

/// Connections that are opened ahead of a start, and requests for the beginning of its boot pack at a time.
pub const READY_CONNECTIONS: usize = tarpon_fetch::EARLY_REQUESTS;

/// An opened image.
pub trait OpenedImage: Send + Sync {
    /// As [`tarpon_registry::Repository::get_ready`], for the first requests of a start.
    fn get_ready(&self) -> BoxFuture<'static, ()>;

    /// The source of its blobs.
    fn blobs(&self) -> Arc<dyn BlobSource>;

    /// What was transferred since it was opened.
    fn stats(&self) -> Stats;

    /// As [`tarpon_registry::Repository::accounts`], since it was opened.
    fn accounts(&self) -> Vec<EndpointAccount>;

    /// Whether the first of these accounts is that of a tier.
    fn has_tier(&self) -> bool {
        false
    }

    /// As [`tarpon_registry::Repository::ignores_ranges`].
    fn ignores_ranges(&self) -> bool;

    /// As [`tarpon_registry::Repository::replace_credentials`].
    fn replace_credentials(&self, credentials: Credentials);
}

/// An opened image whose blobs may be in a tier.
pub struct TieredImage {
    repository: Arc<Repository>,
    tier: Option<OpenedTier>,
}

impl TieredImage {
    /// The image of a repository. It has an account of its own for the tier.
    pub fn new(repository: Arc<Repository>, tier: Option<OpenedTier>) -> Self {
        Self { repository, tier: tier.map(|tier| tier.map(|tier| tier.with_own_account())) }
    }

    fn usable_tier(&self) -> Option<&Arc<Tier>> {
        self.tier.as_ref()?.as_ref().ok()
    }

    fn account_of_tier(&self) -> Option<EndpointAccount> {
        let tier = match self.tier.as_ref()? {
            Ok(tier) => tier,
            Err(UnusableTier { location, why }) => {
                let counts = EndpointCounts { failures: 1, ..EndpointCounts::default() };
                let (host, last_failure) = (location.to_string(), Some(why.clone()));
                return Some(EndpointAccount { host, counts, rest: None, last_failure });
            }
        };
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

impl OpenedImage for TieredImage {
    fn get_ready(&self) -> BoxFuture<'static, ()> {
        let repository = self.repository.clone();
        async move { repository.get_ready(READY_CONNECTIONS).await }.boxed()
    }

    fn blobs(&self) -> Arc<dyn BlobSource> {
        tiers::blobs(&self.repository, self.usable_tier())
    }

    fn stats(&self) -> Stats {
        self.usable_tier().map_or_else(Stats::default, |tier| tiers::stats(tier)) + self.repository.stats()
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

/// Receives and decodes in this process, with all its rights.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

impl Sources for InProcess {
    fn open_later(&self, image: &str, access: &Access) -> Result<Arc<dyn OpenedImage>> {
        let repository = Arc::new(access::open_later(image, access)?);
        let tier = tiers::open_for(&access::parse(image)?, access);
        if let Some(Err(unusable)) = &tier {
            tracing::warn!("{unusable}");
        }
        Ok(Arc::new(TieredImage::new(repository, tier)))
    }

    fn decoder(&self) -> Arc<dyn Decoder> {
        Arc::new(decode::InProcess)
    }

    fn complete(
        &self,
        store: Store,
        manifest: Digest,
        source: Arc<dyn BlobSource>,
    ) -> BoxFuture<'static, Result<Box<dyn Completing>>> {
        let open = move || Completion::open(store, &manifest, source);
        async move {
            let opened = tokio::task::spawn_blocking(open).await.context(ErrorKind::Other, "complete the image")?;
            Ok(Box::new(Arc::new(opened?)) as Box<dyn Completing>)
        }
        .boxed()
    }
}

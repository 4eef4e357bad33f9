//! The images that a worker has opened.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tarpon_images::sources::{OpenedImage as _, TieredImage};
use tarpon_images::tiers::{self, OpenedTier};
use tarpon_images::{ErrorKind, ResultExt as _, access};
use tarpon_registry::{CredentialLookup, Credentials};

use super::questions::Questions;
use crate::blob_service::Blobs;
use crate::message::{BlobRequest, ImageName, TierName, Totals};

/// Images by their number.
pub(super) struct Images {
    opened: Mutex<HashMap<u64, Arc<TieredImage>>>,
    questions: Arc<Questions>,
    /// That of the setup, which all images of this worker have that have any.
    tier: Option<OpenedTier>,
}

impl Images {
    pub(super) fn new(questions: Arc<Questions>, tier: Option<TierName>) -> Self {
        let tier = tier.map(|TierName { location, options }| tiers::open(&location, &options));
        if let Some(Err(why)) = &tier {
            tracing::warn!("{why}");
        }
        Self { opened: Mutex::default(), questions, tier }
    }

    /// The tier for an image.
    pub(super) fn tier_of(&self, name: &ImageName) -> Option<OpenedTier> {
        self.tier.clone().filter(|_| name.tier.is_some())
    }

    /// The image, opened now or before.
    fn image(&self, name: &ImageName) -> Result<Arc<TieredImage>, tarpon_images::Error> {
        let mut opened = self.opened.lock();
        if let Some(known) = opened.get(&name.number) {
            return Ok(known.clone());
        }
        let access = name.access().context(ErrorKind::Other, "read the image's hosts")?;
        let repository = Arc::new(access::open_later_with(&name.text, &access, self.lookup(name.number))?);
        let image = Arc::new(TieredImage::new(repository, self.tier_of(name)));
        opened.insert(name.number, image.clone());
        Ok(image)
    }

    /// Looks up the credentials of an image.
    pub(super) fn lookup(&self, image: u64) -> Arc<dyn CredentialLookup> {
        Arc::new(Lookup { image, questions: self.questions.clone() })
    }

    /// Connects to the registry of an image. Its first request shows what fails.
    pub(super) async fn get_ready(self: Arc<Self>, name: ImageName) {
        match self.image(&name) {
            Ok(image) => image.get_ready().await,
            Err(error) => tracing::debug!(%error, "no connection is made ahead"),
        }
    }

    fn opened(&self, image: u64) -> Option<Arc<TieredImage>> {
        self.opened.lock().get(&image).cloned()
    }

    pub(super) fn forget(&self, image: u64) {
        self.opened.lock().remove(&image);
    }
}

impl Blobs for Images {
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, Result<BlobStream, SourceError>> {
        async move {
            let image = self.image(&request.image);
            let blobs = image.map_err(|error| SourceError::new(Fault::Refused, error.to_string()))?.blobs();
            if request.distrusted {
                blobs.distrust(&request.blob.digest);
            }
            match request.probe {
                true => blobs.probe(request.blob, request.range.start).await,
                false => blobs.read(request.blob, request.range.clone()).await,
            }
        }
        .boxed()
    }

    fn totals(&self, request: &BlobRequest) -> Totals {
        let image = self.opened(request.image.number);
        let of = |known: Arc<TieredImage>| Totals::of(known.stats(), known.ignores_ranges(), known.accounts());
        image.map_or_else(Totals::default, of)
    }
}

/// Asks the worker's user for the credentials of an image.
#[derive(Debug)]
struct Lookup {
    image: u64,
    questions: Arc<Questions>,
}

impl CredentialLookup for Lookup {
    fn find(&self, endpoint: usize) -> BoxFuture<'_, Option<Credentials>> {
        self.questions.credentials(self.image, endpoint).boxed()
    }

    fn may_have<'a>(&'a self, endpoint: usize, host: &'a str) -> BoxFuture<'a, bool> {
        self.questions.may_have(self.image, endpoint, host).boxed()
    }
}

//! The images that a worker has opened.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_blob::{BlobStream, Fault, SourceError};
use tarpon_images::{ErrorKind, ResultExt as _, access};
use tarpon_registry::{CredentialLookup, Credentials, Repository};

use super::questions::Questions;
use crate::blob_service::Blobs;
use crate::message::{BlobRequest, ImageName, Totals};

/// Images by their number.
pub(super) struct Images {
    opened: Mutex<HashMap<u64, Arc<Repository>>>,
    questions: Arc<Questions>,
}

impl Images {
    pub(super) fn new(questions: Arc<Questions>) -> Self {
        Self { opened: Mutex::default(), questions }
    }

    /// The image, opened now or before.
    fn repository(&self, name: &ImageName) -> Result<Arc<Repository>, tarpon_images::Error> {
        let mut opened = self.opened.lock();
        if let Some(known) = opened.get(&name.number) {
            return Ok(known.clone());
        }
        let access = name.access().context(ErrorKind::Other, "read the image's hosts")?;
        let repository = Arc::new(access::open_later_with(&name.text, &access, self.lookup(name.number))?);
        opened.insert(name.number, repository.clone());
        Ok(repository)
    }

    /// Looks up the credentials of an image.
    pub(super) fn lookup(&self, image: u64) -> Arc<dyn CredentialLookup> {
        Arc::new(Lookup { image, questions: self.questions.clone() })
    }

    fn opened(&self, image: u64) -> Option<Arc<Repository>> {
        self.opened.lock().get(&image).cloned()
    }

    pub(super) fn forget(&self, image: u64) {
        self.opened.lock().remove(&image);
    }
}

impl Blobs for Images {
    fn open<'a>(&'a self, request: &'a BlobRequest) -> BoxFuture<'a, Result<BlobStream, SourceError>> {
        async move {
            let repository = self.repository(&request.image);
            let blobs = repository.map_err(|error| SourceError::new(Fault::Refused, error.to_string()))?.blobs();
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
        let repository = self.opened(request.image.number);
        let of = |known: Arc<Repository>| Totals::of(known.stats(), known.ignores_ranges(), known.accounts());
        repository.map_or_else(Totals::default, of)
    }
}

/// Asks the worker's user for the credentials of an image.
#[derive(Debug)]
struct Lookup {
    image: u64,
    questions: Arc<Questions>,
}

impl CredentialLookup for Lookup {
    fn find<'a>(&'a self, registry: &'a str, repository: &'a str) -> BoxFuture<'a, Option<Credentials>> {
        self.questions.credentials(self.image, registry, repository).boxed()
    }

    fn may_have<'a>(&'a self, registry: &'a str, host: &'a str) -> BoxFuture<'a, bool> {
        self.questions.may_have(self.image, registry, host).boxed()
    }
}

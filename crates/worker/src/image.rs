//! [`WorkerImage`]: an image that a worker opened, and the source of its blobs.

use std::ops::Range;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_images::sources::OpenedImage;
use tarpon_oci::{Blob, Digest, Source};
use tarpon_registry::{CredentialSource, Credentials, EndpointAccount, Stats};

use crate::image_state::ImageState;
use crate::message::ImageName;
use crate::response::Response;
use crate::slot::Slot;

/// An image that is opened in a worker.
pub(crate) struct WorkerImage {
    blobs: Arc<WorkerBlobs>,
    /// Where the worker's questions for its credentials are answered from.
    credentials: CredentialSource,
}

/// The source of its blobs.
struct WorkerBlobs {
    image: Arc<ImageState>,
    /// The name of the image, normalised.
    name: String,
    is_local: bool,
}

impl WorkerImage {
    pub(crate) fn new(slot: Arc<Slot>, name: ImageName, source: &Source, credentials: CredentialSource) -> Self {
        let image = Arc::new(ImageState::new(slot, name));
        let is_local = !matches!(source, Source::Registry(_));
        Self { blobs: Arc::new(WorkerBlobs { image, name: source.to_string(), is_local }), credentials }
    }
}

impl OpenedImage for WorkerImage {
    fn get_ready(&self) -> BoxFuture<'static, ()> {
        let image = self.blobs.image.clone();
        async move { image.get_ready() }.boxed()
    }

    fn blobs(&self) -> Arc<dyn BlobSource> {
        self.blobs.clone()
    }

    fn stats(&self) -> Stats {
        self.blobs.image.stats()
    }

    fn accounts(&self) -> Vec<EndpointAccount> {
        self.blobs.image.accounts()
    }

    fn has_tier(&self) -> bool {
        self.blobs.image.has_tier()
    }

    fn ignores_ranges(&self) -> bool {
        self.blobs.image.ignores_ranges()
    }

    fn replace_credentials(&self, credentials: Credentials) {
        self.credentials.replace(credentials);
    }
}

impl BlobSource for WorkerBlobs {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        Response::request(self.image.clone(), self.image.request(blob, range, false)).boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        Response::request(self.image.clone(), self.image.request(blob, at..at + 1, true)).boxed()
    }

    fn distrust(&self, blob: &Digest) -> bool {
        self.image.distrust(blob)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_local(&self) -> bool {
        self.is_local
    }
}

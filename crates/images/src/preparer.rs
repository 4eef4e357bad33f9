//! [`Preparer`]: a process that reads images from their sources for this one.

use std::fmt::Debug;
use std::path::Path;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;
use tarpon_registry::Stats;

use crate::error::Result;
use crate::image::ImageRequest;
use crate::index::pack::PackListener;
use crate::progress::Progress;

/// What is prepared of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// As [`Images::prepare`](crate::Images::prepare), with a request to the image's source.
    Prepare,
    /// As [`Images::prepare_without_streaming`](crate::Images::prepare_without_streaming).
    WithoutStreaming,
    /// As [`Images::pull`](crate::Images::pull).
    Pull,
}

/// Prepares images in another process: it reads their sources, parses what it receives, and writes their records into the store.
pub trait Preparer: Debug + Send + Sync {
    /// Does `task` for the image in the store at `store`. Dropping the future ends it.
    ///
    /// # Errors
    /// Those of the task, and [`ErrorKind::Refused`](crate::ErrorKind::Refused) if the process ended, for example because the image needs more
    /// memory than it may use.
    fn prepare<'a>(
        &'a self,
        task: Task,
        store: &'a Path,
        request: &'a ImageRequest,
        listener: Option<&'a dyn PackListener>,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Finished>>;

    /// Requests the documents of the image that the name currently refers to. They are unverified.
    ///
    /// # Errors
    /// The source has no such image, or no answer.
    fn documents<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Documents>>;
}

/// Manifest and config of an image, as its source has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// Digest of the manifest.
    pub digest: Digest,
    /// The manifest.
    pub manifest: Bytes,
    /// The config.
    pub config: Bytes,
    /// The index that the manifest was chosen from.
    pub index_digest: Option<Digest>,
}

/// An image whose record is in the store now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Fallbacks to something slower, one line each.
    pub fallbacks: Vec<String>,
    /// Requests to its source, and bytes received.
    pub fetched: Stats,
}

//! What long work tells its watcher.

use std::ops::Range;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::StreamExt;
use futures::{FutureExt, TryStreamExt};
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Digest};

/// Told what is going on while an image is prepared. Called from several threads at once; must not block.
pub trait Progress: Send + Sync {
    /// The image was resolved. `layers` are in manifest order, bottom first, each blob once.
    fn resolved(&self, manifest: &Digest, layers: &[LayerPlan]) {
        let _ = (manifest, layers);
    }

    /// `bytes` more of layer `layer`'s blob have arrived.
    fn received(&self, layer: usize, bytes: u64) {
        let _ = (layer, bytes);
    }

    /// Layer `layer` is indexed.
    fn layer_done(&self, layer: usize) {
        let _ = layer;
    }

    /// Something worth a line to the user: a fallback and its reason.
    fn note(&self, line: &str) {
        let _ = line;
    }
}

/// Says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// How one layer will be made ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPlan {
    /// Its place in the manifest, from 0.
    pub number: usize,
    /// The layer's blob.
    pub digest: Digest,
    /// Compressed bytes of the blob.
    pub size: u64,
    /// What it takes.
    pub way: LayerWay,
}

/// What it takes to index a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerWay {
    /// Its index is in the store already.
    Local,
    /// Its table of contents is fetched; its files come when they are read.
    Toc,
    /// An index from elsewhere stands in for the table of contents that it does not have.
    Index,
    /// It is wanted as a whole, and streamed.
    Whole,
    /// It has no usable table of contents: the whole blob is streamed once.
    Stream,
}

impl LayerWay {
    /// Whether all of its bytes come by.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Stream | Self::Whole)
    }
}

/// A source that tells what it reads.
pub(crate) struct Counted {
    pub(crate) source: Arc<dyn BlobSource>,
    pub(crate) progress: Arc<dyn Progress>,
    /// The layer that it reads.
    pub(crate) number: usize,
}

impl BlobSource for Counted {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let (progress, number) = (self.progress.clone(), self.number);
        async move {
            let pieces = self.source.read(blob, range).await?;
            let told = pieces.inspect_ok(move |piece| progress.received(number, piece.len() as u64));
            Ok(told.boxed())
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.source.probe(blob, at)
    }

    fn name(&self) -> String {
        self.source.name()
    }
}

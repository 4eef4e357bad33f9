//! Progress reports of long work.

use std::ops::Range;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::StreamExt;
use futures::{FutureExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Digest};

/// Receives progress while an image is prepared. Called from several threads at once; must not block.
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

    /// Of what a start needs, `requested` of the `missing` bytes were requested so far.
    fn start_requested(&self, requested: u64, missing: u64) {
        let _ = (requested, missing);
    }

    /// A line for the user: a fallback and its reason.
    fn note(&self, line: &str) {
        let _ = line;
    }
}

/// Reports nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// How a layer is prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Its place in the manifest, from 0.
    pub number: usize,
    /// The layer's blob.
    pub digest: Digest,
    /// Compressed bytes of the blob.
    pub size: u64,
    /// How it is indexed.
    pub way: LayerWay,
}

/// How a layer is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerWay {
    /// Its index is already in the store.
    Local,
    /// Its table of contents is fetched; its files are fetched when they are read.
    Toc,
    /// An external index replaces the missing table of contents.
    Index,
    /// It is wanted as a whole, and streamed.
    Whole,
    /// It has no usable table of contents: the whole blob is streamed once.
    Stream,
}

impl LayerWay {
    /// Whether all of its bytes are received.
    pub fn is_streamed(self) -> bool {
        matches!(self, Self::Stream | Self::Whole)
    }
}

/// A source that reports what it reads.
pub struct Counted {
    /// The source.
    pub source: Arc<dyn BlobSource>,
    /// Receives the number of bytes.
    pub progress: Arc<dyn Progress>,
    /// The layer that it reads.
    pub number: usize,
}

impl BlobSource for Counted {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        let (progress, number) = (self.progress.clone(), self.number);
        async move {
            let pieces = self.source.read(blob, range).await?;
            let counted = pieces.inspect_ok(move |piece| progress.received(number, piece.len() as u64));
            Ok(counted.boxed())
        }
        .boxed()
    }

    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.source.probe(blob, at)
    }

    fn distrust(&self, blob: &Digest) -> bool {
        self.source.distrust(blob)
    }

    fn name(&self) -> String {
        self.source.name()
    }
}

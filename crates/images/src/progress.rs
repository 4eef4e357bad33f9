//! Progress reports of long work.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarpon_blob::{BlobSource, Paced};
use tarpon_oci::Digest;

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

/// A source that reports the number of bytes that are read of a layer.
pub fn counted(source: Arc<dyn BlobSource>, progress: Arc<dyn Progress>, number: usize) -> Arc<dyn BlobSource> {
    Arc::new(Paced::new(source, None, move |bytes| progress.received(number, bytes)))
}

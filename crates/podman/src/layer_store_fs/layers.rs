//! [`Layers`]: where a [`super::LayerStoreFs`] gets its layers.

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_fs::Errno;
use tarpon_oci::{Digest, Reference};

use crate::layer_numbers::Diff;

/// Identifies a layer: by its image, and by the digest of its blob or of its table of contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LayerKey {
    /// The image.
    pub(crate) image: Reference,
    /// One of the two digests.
    pub(crate) digest: Digest,
}

/// Content of a layer's directory.
#[derive(Clone)]
pub(crate) struct ShownLayer {
    /// The layer.
    pub(crate) diff: Diff,
    /// Its description.
    pub(crate) info: Bytes,
    /// Size of its blob in bytes.
    pub(crate) blob_size: u64,
}

/// A change of a layer's use count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// One more.
    More,
    /// One less.
    Less,
}

/// The source of layers.
pub(crate) trait Layers: Send + Sync + 'static {
    /// The layer, if it is known. Answers from memory.
    fn get(&self, key: &LayerKey) -> Option<ShownLayer>;

    /// The layer with this content among those that [`Layers::get`] returns or has returned for the key. Answers from memory.
    fn with_content(&self, key: &LayerKey, content: &Digest) -> Option<Diff>;

    /// Determines whether the layer exists: afterwards [`Layers::get`] returns it, or there is none. Ends in less than
    /// two minutes.
    fn find(&self, key: &LayerKey) -> BoxFuture<'static, ()>;

    /// Changes its use count.
    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()>;

    /// A part of its blob: exactly this many bytes, or fewer at its end. Ends in less than two minutes.
    fn blob(&self, key: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, Result<Bytes, Errno>>;
}

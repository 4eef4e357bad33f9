//! [`Layer`]: a layer as stored in a registry.

use std::collections::BTreeMap;

use tarpon_oci::{Blob, Compression, Digest};

use super::compress::{gzip, zstd};
use super::item::Item;
use super::tar::{Dialect, tar};

/// A layer as stored in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// How the blob is compressed.
    pub compression: Compression,
    /// Annotations of the descriptor.
    pub annotations: BTreeMap<String, String>,
    /// The blob.
    pub blob: Vec<u8>,
    /// Digest of the decompressed blob.
    pub diff_id: Digest,
}

impl Layer {
    /// Compresses `tar` in one piece.
    pub fn plain(tar: &[u8], compression: Compression) -> Self {
        let blob = match compression {
            Compression::None => tar.to_vec(),
            Compression::Gzip => gzip(tar),
            Compression::Zstd => zstd(tar),
        };
        Self { compression, annotations: BTreeMap::new(), blob, diff_id: Digest::of(tar) }
    }

    /// A gzip-compressed tar of these entries.
    pub fn gzip(items: &[Item]) -> Self {
        Self::plain(&tar(items, Dialect::Pax), Compression::Gzip)
    }

    /// Digest and size of the blob.
    pub fn descriptor(&self) -> Blob {
        Blob { digest: Digest::of(&self.blob), size: self.blob.len() as u64 }
    }
}

//! Indexes that were made for another image with the same layer.

use serde::{Deserialize, Serialize};
use tarpon_layer::LayerIndex;
use tarpon_layer::decode::Compression;
use tarpon_oci::{Blob, limits};
use tarpon_store::Store;

use super::layers::Layer;

/// Changes with everything that changes the bytes of a kept index. Others are made anew.
const VERSION: u32 = 2;

/// Fast, and half the size: most of what remains are digests.
const ZSTD_LEVEL: i32 = 1;

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    blob_size: u64,
    compression: u8,
    format: String,
    verification: String,
    index: LayerIndex,
}

/// The layer, if its index was kept.
pub(super) fn load(store: &Store, blob: Blob) -> Option<Layer> {
    let bytes = store.layer_index(&blob.digest).ok()??;
    let capacity = usize::try_from(limits::LAYER_INDEX_BYTES * 2).ok()?;
    let decoded = zstd::bulk::decompress(&bytes, capacity).ok()?;
    let kept: Kept = postcard::from_bytes(&decoded).ok()?;
    let compression = [Compression::None, Compression::Gzip, Compression::Zstd];
    let compression = *compression.get(usize::from(kept.compression))?;
    if kept.version != VERSION || kept.blob_size != blob.size {
        return None;
    }
    let Kept { format, verification, index, .. } = kept;
    Some(Layer { blob, compression, format, verification, index, fallback: None })
}

/// Keeps the layer's index. If that fails, it is made anew next time.
pub(super) fn save(store: &Store, layer: &Layer) {
    let kept = Kept {
        version: VERSION,
        blob_size: layer.blob.size,
        compression: match layer.compression {
            Compression::None => 0,
            Compression::Gzip => 1,
            Compression::Zstd => 2,
        },
        format: layer.format.clone(),
        verification: layer.verification.clone(),
        index: layer.index.clone(),
    };
    let saved = postcard::to_stdvec(&kept)
        .map_err(|error| error.to_string())
        .and_then(|bytes| zstd::bulk::compress(&bytes, ZSTD_LEVEL).map_err(|error| error.to_string()))
        .and_then(|bytes| store.keep_layer_index(&layer.blob.digest, &bytes).map_err(|error| error.to_string()));
    if let Err(error) = saved {
        tracing::debug!(layer = %layer.blob.digest, %error, "the index of the layer is not kept");
    }
}

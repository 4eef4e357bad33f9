//! Indexes that were made for another image with the same layer.
//!
//! Conditions for reusing one for this image:
//!
//! - A layer without a claim was streamed: blob digest and diffID were both compared, so the blob's digest alone names its
//!   content. It is kept by that digest; the diffID must still be the one that this image's config names.
//! - A layer with a table of contents was never hashed. Only the content of the table with this digest is known, so the
//!   index is kept by blob, format and digest of the table, and found only by images that claim the same three. The same
//!   applies to such a layer that had to be streamed: its claim decides which names are hidden.
//!
//! The claims of an external index about a layer of one image are kept beside them ([`save_claim`]). They serve no other image and no mount,
//! but are compared with the layer once it has been seen.

use std::io::{self, BufWriter, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarpon_layer::decode::Compression;
use tarpon_layer::packed::{self, Packed};
use tarpon_layer::toc::Claim;
use tarpon_layer::{Allowance, LayerIndex};
use tarpon_oci::{Blob, Digest, limits};
use tarpon_store::{IndexKey, LayerKind, LayerRecord, Store, Verification};

use super::layer::Layer;
use crate::index::artifact::Indexed;

/// Changes with every change to the bytes of a kept index. Other versions are made again.
const VERSION: u32 = 6;

/// Fast, and half the size: most of the rest is digests.
const ZSTD_LEVEL: i32 = 1;

/// A kept index.
#[derive(Deserialize)]
struct Kept {
    head: Head,
    /// [Packed](packed).
    index: Vec<u8>,
}

/// What is kept besides the index.
#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    blob_size: u64,
    compression: u8,
    format: LayerKind,
    verification: Verification,
    diff_id: Option<Digest>,
    prefetch: Option<u64>,
    /// Bytes received to make it.
    received: u64,
}

fn key(blob: Blob, claim: &Claim) -> IndexKey {
    let claim = match claim {
        Claim::Plain => None,
        Claim::Toc(claim) => Some(Digest::of(format!("{} {}", claim.format(), claim.digest()).as_bytes())),
    };
    IndexKey { layer: blob.digest, claim }
}

/// The layer, if its index was kept for an image with the same claim. The caller compares its diffID, if any, with the one in the image's
/// config. It costs the image's allowance the same as making it again.
pub(super) fn load(store: &Store, blob: Blob, claim: &Claim, allowance: &Allowance) -> Option<Layer> {
    let Kept { head, index } = read(store, &key(blob, claim))?;
    let compression = Compression::from_number(head.compression)?;
    if head.version != VERSION || head.blob_size != blob.size {
        return None;
    }
    let Head { format, verification, diff_id, prefetch, received, .. } = head;
    allowance.receive(received);
    let packed = Some(Digest::of(&index));
    let index = packed::unpack_within(&index, blob, allowance).ok()?;
    Some(Layer { blob, compression, format, verification, diff_id, index, packed, prefetch, received, fallback: None })
}

/// Keeps the layer's index. If that fails, it is made again next time. Returns the digest of what is kept.
pub(super) fn save(store: &Store, claim: &Claim, layer: &Layer) -> Digest {
    let head = Head {
        version: VERSION,
        blob_size: layer.blob.size,
        compression: layer.compression.number(),
        format: layer.format,
        verification: layer.verification,
        diff_id: layer.diff_id,
        prefetch: layer.prefetch,
        received: layer.received,
    };
    write(store, &key(layer.blob, claim), &head, &layer.index)
}

/// The claims of an external index about a layer.
pub(super) struct IndexClaim {
    /// Digest of that index.
    pub(super) by: Digest,
    /// The claimed index of the layer.
    pub(super) index: LayerIndex,
    /// Digest of the packed index.
    packed: Digest,
}

#[derive(Deserialize)]
struct StoredClaim {
    head: ClaimHead,
    /// [Packed](packed).
    index: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct ClaimHead {
    version: u32,
    by: Digest,
}

/// The hashed text is part of the format of stores.
fn claim_key(image: &Digest, blob: Blob) -> IndexKey {
    IndexKey { layer: blob.digest, claim: Some(Digest::of(format!("said of {image}").as_bytes())) }
}

/// Keeps the claims of the index `by` about the layer of `image`. Returns the digest of what is kept.
pub(super) fn save_claim(store: &Store, image: &Digest, by: Digest, layer: &Layer) -> Digest {
    write(store, &claim_key(image, layer.blob), &ClaimHead { version: VERSION, by }, &layer.index)
}

/// The claims about the layer of `image`, if they were kept.
pub(super) fn load_claim(store: &Store, image: &Digest, blob: Blob) -> Option<IndexClaim> {
    let kept: StoredClaim = read(store, &claim_key(image, blob))?;
    // It was within bounds when the image was prepared.
    let index = packed::unpack_within(&kept.index, blob, &Allowance::unbounded()).ok()?;
    (kept.head.version == VERSION).then(|| IndexClaim { by: kept.head.by, index, packed: Digest::of(&kept.index) })
}

/// The layer of `image` as an external index describes it, if that was kept. `known` is its entry in the image's record.
pub(super) fn claimed_layer(store: &Store, image: &Digest, blob: Blob, known: &LayerRecord) -> Option<Layer> {
    let IndexClaim { index, packed, .. } = load_claim(store, image, blob)?;
    let compression = if known.format == LayerKind::TarZstd { Compression::Zstd } else { Compression::Gzip };
    let layer = Layer::by_index(Indexed { blob, compression, index }, known.format, known.verification);
    Some(Layer { packed: Some(packed), ..layer })
}

fn read<T: DeserializeOwned>(store: &Store, key: &IndexKey) -> Option<T> {
    let bytes = store.layer_index(key).ok()??;
    let capacity = usize::try_from(limits::LAYER_INDEX_BYTES * 2).ok()?;
    let decoded = zstd::bulk::decompress(&bytes, capacity).ok()?;
    postcard::from_bytes(&decoded).ok()
}

/// Returns the digest of the packed index.
fn write(store: &Store, key: &IndexKey, head: &impl Serialize, index: &LayerIndex) -> Digest {
    let index = Packed::new(index);
    let (size, digest) = index.measure();
    let saved = compressed(head, &index, size)
        .map_err(|error| error.to_string())
        .and_then(|bytes| store.keep_layer_index(key, &bytes).map_err(|error| error.to_string()));
    if let Err(error) = saved {
        tracing::debug!(layer = %key.layer, %error, "the index of the layer is not kept");
    }
    digest
}

/// The head and the packed index of `size` bytes. Its digests, most of a packed index, are compressed from the index itself.
fn compressed(head: &impl Serialize, index: &Packed<'_>, size: usize) -> io::Result<Vec<u8>> {
    let head = postcard::to_stdvec(&(head, size)).map_err(io::Error::other)?;
    let mut encoder = zstd::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
    encoder.set_pledged_src_size(Some((head.len() + size) as u64))?;
    let mut out = BufWriter::new(encoder);
    out.write_all(&head)?;
    index.write_to(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tarpon_oci::{Compression as LayerCompression, MediaType};
    use tarpon_store::StoreConfig;

    use super::*;

    const ESTARGZ: &str = "containerd.io/snapshot/stargz/toc.digest";

    fn claim(toc: Option<&[u8]>) -> Claim {
        let annotations: BTreeMap<String, String> =
            toc.iter().map(|toc| (ESTARGZ.to_owned(), Digest::of(toc).to_string())).collect();
        Claim::of(&MediaType::Layer(LayerCompression::Gzip), &annotations, 1000).unwrap()
    }

    fn layer(diff_id: Option<Digest>) -> Layer {
        Layer {
            blob: Blob { digest: Digest::of(b"a layer of the good image"), size: 1000 },
            compression: Compression::Gzip,
            format: LayerKind::Estargz,
            verification: Verification::Toc,
            diff_id,
            index: LayerIndex::default(),
            packed: None,
            prefetch: Some(500),
            received: 1000,
            fallback: None,
        }
    }

    #[test]
    fn a_table_that_another_image_names_for_the_same_blob_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let evil = layer(None);
        save(&store, &claim(Some(b"evil")), &evil);
        assert!(load(&store, evil.blob, &claim(Some(b"evil")), &Allowance::default()).is_some());
        assert!(load(&store, evil.blob, &claim(Some(b"good")), &Allowance::default()).is_none());
        assert!(
            load(&store, evil.blob, &claim(None), &Allowance::default()).is_none(),
            "an image without a table streams the layer"
        );
    }

    #[test]
    fn a_streamed_layer_comes_back_with_the_diff_id_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let streamed = layer(Some(Digest::of(b"tar")));
        save(&store, &claim(None), &streamed);
        let kept = load(&store, streamed.blob, &claim(None), &Allowance::default()).unwrap();
        assert_eq!((kept.diff_id, kept.prefetch), (streamed.diff_id, Some(500)));
        assert!(
            load(&store, streamed.blob, &claim(Some(b"toc")), &Allowance::default()).is_none(),
            "one image has one reading"
        );
    }
}

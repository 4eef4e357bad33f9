//! Invariant: any bytes are a manifest, an index, or an error, never both; an accepted document keeps to the limits, its
//! selection ends in one of its own descriptors, and the declared media type never changes the kind of a document.

use bytes::Bytes;
use tarpon_oci::{Document, ImageConfig, Platform, Verified, limits, media_type};

/// Parses `data` as a manifest or index, and as a config.
pub fn manifest_index(data: &[u8]) {
    let bytes = Verified::seal(Bytes::copy_from_slice(data));
    if let Ok(config) = ImageConfig::parse(bytes.clone()) {
        assert!(config.diff_ids.len() <= limits::LAYERS);
    }
    let as_manifest = Document::parse(bytes.clone(), Some(media_type::OCI_MANIFEST));
    let as_index = Document::parse(bytes.clone(), Some(media_type::OCI_INDEX));
    assert!(as_manifest.is_err() || as_index.is_err(), "two readings of one document");
    match Document::parse(bytes, None) {
        Ok(Document::Manifest(manifest)) => {
            assert!(matches!(as_manifest, Ok(Document::Manifest(_))));
            assert!(manifest.layers.len() <= limits::LAYERS);
            assert!(manifest.layers.iter().all(|layer| layer.size <= limits::BLOB_BYTES));
            if manifest.check_image().is_ok() {
                assert!((0..manifest.layers.len()).all(|at| manifest.compression(at).is_some()));
            }
        }
        Ok(Document::Index(index)) => {
            assert!(matches!(as_index, Ok(Document::Index(_))));
            if let Ok(chosen) = index.select(&Platform::host()) {
                assert!(index.manifests.contains(chosen) && chosen.artifact_type.is_none());
            }
        }
        Err(_) => {}
    }
}

//! The documents of the result: the original ones with the necessary changes and no others.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tarpon_oci::media_type::{DOCKER_INDEX, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use tarpon_oci::{Blob, Digest, ImageIndex, NewDescriptor};

use super::choose::{Chosen, Image};
use super::layers::NewLayer;
use crate::Result;
use crate::edit::{Object, annotations_for_other_layers, malformed, set, sized};

/// The config for `layers`: byte for byte the old one except for the diffIDs.
pub(super) fn config(image: &Image, layers: &[&NewLayer]) -> Result<Bytes> {
    #[derive(Deserialize)]
    struct Config<'a> {
        #[serde(borrow)]
        rootfs: RootFs<'a>,
    }
    #[derive(Deserialize)]
    struct RootFs<'a> {
        #[serde(borrow)]
        diff_ids: &'a RawValue,
    }
    let old = &image.config.bytes;
    if layers.iter().map(|layer| &layer.diff_id).eq(&image.config.diff_ids) {
        return Ok(Bytes::clone(old));
    }
    let config: Config = serde_json::from_slice(old).map_err(malformed)?;
    // A borrowed value is a part of the document, so its offset is known.
    let start = config.rootfs.diff_ids.get().as_ptr().addr() - old.as_ptr().addr();
    let end = start + config.rootfs.diff_ids.get().len();
    let diff_ids: Vec<&Digest> = layers.iter().map(|layer| &layer.diff_id).collect();
    let diff_ids = serde_json::to_vec(&diff_ids).map_err(malformed)?;
    sized([&old[..start], &diff_ids, &old[end..]].concat())
}

/// The manifest for `layers`, in OCI media types. If nothing differs it is the old one, byte for byte.
pub(super) fn manifest(image: &Image, config: Blob, layers: &[&NewLayer]) -> Result<Bytes> {
    let old = &image.manifest;
    let has_old_layers = layers.iter().all(|layer| layer.is_copy());
    if has_old_layers && config == old.config.blob() && old.media_type == OCI_MANIFEST {
        return Ok(Bytes::clone(&old.bytes));
    }
    let mut config = NewDescriptor::new(OCI_CONFIG, config);
    config.annotations.clone_from(&old.config.annotations);
    let layers: Vec<&NewDescriptor> = layers.iter().map(|layer| &layer.descriptor).collect();
    let mut document: Object = serde_json::from_slice(&old.bytes).map_err(malformed)?;
    set(&mut document, "mediaType", OCI_MANIFEST)?;
    set(&mut document, "config", &config)?;
    set(&mut document, "layers", &layers)?;
    let annotations = annotations_for_other_layers(old);
    // Otherwise they stay as they were, byte for byte.
    if !has_old_layers && annotations != old.annotations {
        set(&mut document, "annotations", &annotations)?;
    }
    sized(serde_json::to_vec(&document).map_err(malformed)?)
}

/// The index that names `manifests`, each in the position of its original image.
pub(super) fn index(old: &ImageIndex, chosen: &Chosen, manifests: &[&Bytes]) -> Result<Bytes> {
    #[derive(Deserialize)]
    struct Entries {
        manifests: Vec<Object>,
    }
    let same = |(image, new): (&super::choose::Image, &&Bytes)| **new == *image.manifest.bytes;
    let is_complete = manifests.len() == old.manifests.len();
    let mut document: Object = serde_json::from_slice(&old.bytes).map_err(malformed)?;
    let is_docker = document.get("mediaType").is_some_and(|stated| stated.get().contains(DOCKER_INDEX));
    if is_complete && !is_docker && chosen.images.iter().zip(manifests).all(same) {
        return Ok(Bytes::clone(&old.bytes));
    }
    let mut old: Entries = serde_json::from_slice(&old.bytes).map_err(malformed)?;
    let mut entries = Vec::with_capacity(manifests.len());
    for (image, manifest) in chosen.images.iter().zip(manifests) {
        let entry = image.entry.and_then(|place| old.manifests.get_mut(place)).map(std::mem::take);
        let mut entry = entry.unwrap_or_default();
        set(&mut entry, "mediaType", OCI_MANIFEST)?;
        set(&mut entry, "digest", Digest::of(manifest))?;
        set(&mut entry, "size", manifest.len())?;
        // Inline data and other locations belong to the old manifest.
        entry.remove("data");
        entry.remove("urls");
        entries.push(entry);
    }
    set(&mut document, "mediaType", OCI_INDEX)?;
    set(&mut document, "manifests", &entries)?;
    sized(serde_json::to_vec(&document).map_err(malformed)?)
}

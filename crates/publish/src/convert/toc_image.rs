//! The image with the tables of contents of eStargz layers that contain none: one layer for each, under the destination's tag with a
//! suffix.

use bytes::Bytes;
use serde_json::json;
use tarpon_layer::toc::EXTERNAL_TOC_TAG_SUFFIX;
use tarpon_oci::media_type::{OCI_CONFIG, OCI_MANIFEST};
use tarpon_oci::{Compression, NewDescriptor, is_tag};
use tarpon_registry::Destination;

use super::choose::Chosen;
use super::failure::outward;
use super::layers::NewLayer;
use super::report::TocImage;
use super::rewrite::Recipe;
use crate::{Error, ErrorKind, Result};

/// The tag of that image beside `tag`. Checked before any work is done.
pub(super) fn tag(tag: &str, recipe: &Recipe) -> Result<String> {
    let toc_tag = format!("{tag}{EXTERNAL_TOC_TAG_SUFFIX}");
    match recipe {
        Recipe::Estargz { options, .. } if options.keep_diff_id && !is_tag(&toc_tag) => {
            Err(Error::new(ErrorKind::Other, "read the destination's name", format!("{toc_tag:?} cannot be a tag")))
        }
        _ => Ok(toc_tag),
    }
}

/// Pushes the tables of contents of `layers`. One image for all platforms, as readers expect.
pub(super) async fn push(
    destination: &Destination,
    chosen: &Chosen,
    layers: &[NewLayer],
    tag: &str,
) -> Result<Option<TocImage>> {
    let failed = |error| outward(format!("push the tables of contents as {tag}"), error);
    let (mut descriptors, mut diff_ids) = (Vec::new(), Vec::new());
    for toc in layers.iter().filter_map(|layer| layer.external_toc.as_ref()) {
        let blob = destination.push_bytes(Bytes::copy_from_slice(&toc.bytes)).await.map_err(failed)?;
        let mut descriptor = NewDescriptor::new(Compression::Gzip.layer_media_type(), blob);
        descriptor.annotations.clone_from(&toc.annotations);
        descriptors.push(descriptor);
        diff_ids.push(toc.diff_id);
    }
    let Some(first) = chosen.images.first().filter(|_| !descriptors.is_empty()) else { return Ok(None) };
    let platform = &first.config.platform;
    let config = json!({
        "architecture": platform.architecture(),
        "os": platform.os(),
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = destination.push_bytes(config.to_string().into()).await.map_err(failed)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": NewDescriptor::new(OCI_CONFIG, config),
        "layers": descriptors,
    });
    let manifest = Bytes::from(manifest.to_string());
    let digest = destination.push_manifest(OCI_MANIFEST, manifest, Some(tag)).await.map_err(failed)?;
    Ok(Some(TocImage { tag: tag.to_owned(), digest }))
}

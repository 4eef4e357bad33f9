//! Config and manifest of a new image: those of its base, with one more layer.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tarpon_layer::{Timestamp, time};
use tarpon_oci::media_type::{OCI_CONFIG, OCI_MANIFEST};
use tarpon_oci::{Blob, Digest, MediaType, NewDescriptor, Source, limits};

use super::base::Base;
use super::change::{self, Change};
use crate::Result;
use crate::edit::{Object, annotations_for_other_layers, malformed, set, sized};

/// Annotations that name the base of an image.
const BASE_NAME: &str = "org.opencontainers.image.base.name";
const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";

/// The description of the new layer.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerHistory {
    /// When it was created, in seconds since 1970.
    pub(super) created: i64,
    pub(super) created_by: String,
    pub(super) author: Option<String>,
    pub(super) comment: Option<String>,
    pub(super) changes: Vec<Change>,
}

/// An entry of a config's history, as it is written.
#[derive(Serialize)]
struct History<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<&'a str>,
    created_by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
}

/// The base's config with the layer of this diffID on top.
pub(super) fn config(base: &Base, diff_id: Digest, layer_history: &LayerHistory) -> Result<Bytes> {
    let mut document: Object = serde_json::from_slice(&base.config.bytes).map_err(malformed)?;
    let created = time::format(Timestamp { seconds: layer_history.created, nanoseconds: 0 });
    let created = created.ok_or_else(|| malformed(format!("{} is no time of this era", layer_history.created)))?;
    set(&mut document, "created", &created)?;
    if let Some(author) = &layer_history.author {
        set(&mut document, "author", author)?;
    }
    let mut run: Object = inner(&document, "config")?;
    change::apply(&layer_history.changes, &mut run)?;
    set(&mut document, "config", run)?;

    let mut rootfs: Object = inner(&document, "rootfs")?;
    let diff_ids: Vec<&Digest> = base.config.diff_ids.iter().chain([&diff_id]).collect();
    set(&mut rootfs, "diff_ids", diff_ids)?;
    set(&mut document, "rootfs", rootfs)?;

    let entry = History {
        created: Some(&created),
        created_by: &layer_history.created_by,
        author: layer_history.author.as_deref(),
        comment: layer_history.comment.as_deref(),
    };
    let history = history(&document, base.config.diff_ids.len(), &entry)?;
    set(&mut document, "history", history)?;
    sized(serde_json::to_vec(&document).map_err(malformed)?)
}

/// The base's history and `entry`. If it omits layers, placeholder entries are added: readers count them.
fn history(document: &Object, layers: usize, entry: &History<'_>) -> Result<Vec<Box<RawValue>>> {
    #[derive(serde::Deserialize)]
    struct HistoryEntry {
        empty_layer: Option<bool>,
    }
    let mut history: Vec<Box<RawValue>> = match document.get("history") {
        Some(history) => serde_json::from_str::<Option<_>>(history.get()).map_err(malformed)?.unwrap_or_default(),
        None => Vec::new(),
    };
    let mut counted = 0;
    for entry in &history {
        let entry: HistoryEntry = serde_json::from_str(entry.get()).map_err(malformed)?;
        counted += usize::from(!entry.empty_layer.unwrap_or_default());
    }
    let unknown = History { created: None, created_by: "unknown", author: None, comment: None };
    for _ in counted..layers {
        history.push(serde_json::value::to_raw_value(&unknown).map_err(malformed)?);
    }
    history.push(serde_json::value::to_raw_value(entry).map_err(malformed)?);
    Ok(history)
}

/// The base's manifest with `layer` on top, in OCI media types.
pub(super) fn manifest(base: &Base, config: Blob, layer: &NewDescriptor) -> Result<Bytes> {
    if base.manifest.layers.len() >= limits::LAYERS {
        return Err(malformed(format!("the image has {} layers already, and that is the most", limits::LAYERS)));
    }
    let mut document: Object = serde_json::from_slice(&base.manifest.bytes).map_err(malformed)?;
    let mut layers: Vec<Object> = inner(&document, "layers")?;
    for (layer, read) in layers.iter_mut().zip(&base.manifest.layers) {
        // Docker's media types differ.
        if let MediaType::Layer(compression) = &read.media_type {
            set(layer, "mediaType", compression.layer_media_type())?;
        }
    }
    let layer = serde_json::to_string(layer).and_then(|text| serde_json::from_str(&text)).map_err(malformed)?;
    layers.push(layer);
    let mut descriptor = NewDescriptor::new(OCI_CONFIG, config);
    descriptor.annotations.clone_from(&base.manifest.config.annotations);
    let mut annotations = annotations_for_other_layers(&base.manifest);
    annotations.insert(BASE_DIGEST.to_owned(), base.manifest.digest().to_string());
    match &base.source {
        Source::Registry(reference) => annotations.insert(BASE_NAME.to_owned(), reference.to_string()),
        // A path of this host means nothing elsewhere.
        _ => annotations.remove(BASE_NAME),
    };
    set(&mut document, "mediaType", OCI_MANIFEST)?;
    set(&mut document, "config", &descriptor)?;
    set(&mut document, "layers", &layers)?;
    set(&mut document, "annotations", &annotations)?;
    // The base's subject is not the new image's.
    document.remove("subject");
    sized(serde_json::to_vec(&document).map_err(malformed)?)
}

/// A part of a document; the default if it is missing.
fn inner<T: serde::de::DeserializeOwned + Default>(document: &Object, key: &str) -> Result<T> {
    let part = document.get(key).map(|part| serde_json::from_str::<Option<T>>(part.get())).transpose();
    Ok(part.map_err(malformed)?.flatten().unwrap_or_default())
}

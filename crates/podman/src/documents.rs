//! `images.json` and `layers.json`, and the names of an image's files, as containers/storage reads them.
//!
//! A single unreadable image makes every command of Podman fail. So names are unique, times are in a format that Go can read, sizes are
//! present, and layers are listed before images name them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Serialize;
use tarpon_layer::time;
use tarpon_oci::Digest;

use super::forms::LayerForm;

/// A layer in `layers.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Layer {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    diff_digest: String,
    diff_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compressed_diff_digest: Option<String>,
    compressed_size: u64,
    compression: u8,
}

impl Layer {
    /// The layer `form` under the name `id`.
    pub(crate) fn new(form: &LayerForm, id: &Digest, parent: Option<&Digest>, created: Option<&str>) -> Self {
        Self {
            id: id.hex(),
            parent: parent.map(Digest::hex),
            created: created.map(str::to_owned),
            // Required: otherwise Podman cannot determine sizes.
            diff_digest: form.diff_id.to_string(),
            diff_size: form.size,
            compressed_diff_digest: form.is_hashed.then(|| form.blob.to_string()),
            compressed_size: form.blob_size,
            compression: form.compression,
        }
    }
}

/// An image in `images.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Image {
    id: String,
    digest: String,
    names: Vec<String>,
    layer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    big_data_names: Vec<String>,
    big_data_sizes: BTreeMap<String, u64>,
    big_data_digests: BTreeMap<String, String>,
}

/// The manifest and the config of an image, byte for byte.
#[derive(Debug, Clone)]
pub(crate) struct Originals {
    /// The manifest.
    pub(crate) manifest: Bytes,
    /// Its digest.
    pub(crate) manifest_digest: Digest,
    /// The config.
    pub(crate) config: Bytes,
    /// Its digest: the image's id.
    pub(crate) id: Digest,
}

impl Originals {
    /// The image's files, by their names in containers/storage.
    pub(crate) fn files(&self) -> [(String, Digest, Bytes); 3] {
        [
            (self.id.to_string(), self.id, self.config.clone()),
            (format!("manifest-{}", self.manifest_digest), self.manifest_digest, self.manifest.clone()),
            ("manifest".to_owned(), self.manifest_digest, self.manifest.clone()),
        ]
    }
}

impl Image {
    pub(crate) fn new(originals: &Originals, names: &[String], top: &Digest, created: Option<&str>) -> Self {
        let files = originals.files();
        Self {
            id: originals.id.hex(),
            digest: originals.manifest_digest.to_string(),
            names: names.to_vec(),
            layer: top.hex(),
            created: created.map(str::to_owned),
            big_data_names: files.iter().map(|(name, ..)| name.clone()).collect(),
            big_data_sizes: files.iter().map(|(name, _, bytes)| (name.clone(), bytes.len() as u64)).collect(),
            big_data_digests: files.iter().map(|(name, digest, _)| (name.clone(), digest.to_string())).collect(),
        }
    }
}

/// The name of the file that holds big data of this name.
pub(crate) fn file_name(name: &str) -> String {
    if name.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit() || byte.is_ascii_lowercase()) {
        return name.to_owned();
    }
    format!("={}", BASE64_STANDARD.encode(name))
}

/// The bytes of a document.
pub(crate) fn text(document: &impl Serialize) -> Bytes {
    // Serializing maps of texts and numbers cannot fail.
    Bytes::from(serde_json::to_vec(document).unwrap_or_else(|_| b"[]".to_vec()))
}

/// Converts a time of a config to Go's format. `None` if it is not a time.
pub(crate) fn created(text: &str) -> Option<String> {
    time::format(time::parse(text)?)
}

/// The content of a lock file: 64 bytes that differ after each change.
pub(crate) fn lock(change: &str) -> Bytes {
    Bytes::from(Digest::of(change.as_bytes()).hex())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_layer_has_the_digest_of_its_blob_only_if_the_blob_was_hashed() {
        let (id, parent, diff_id) = (Digest::of(b"id"), Digest::of(b"parent"), Digest::of(b"diff"));
        let value = |is_hashed, parent| {
            let form = LayerForm::test(id, diff_id, is_hashed);
            serde_json::to_value(Layer::new(&form, &id, parent, Some("2026-01-01T00:00:00Z"))).unwrap()
        };
        assert_eq!(
            value(true, Some(&parent)),
            json!({"id": id.hex(), "parent": parent.hex(), "created": "2026-01-01T00:00:00Z",
                "diff-digest": diff_id.to_string(), "diff-size": 1024,
                "compressed-diff-digest": Digest::of(b"blob").to_string(), "compressed-size": 7, "compression": 2})
        );
        let unknown = value(false, None);
        assert!(unknown.get("compressed-diff-digest").is_none() && unknown.get("parent").is_none());
    }

    #[test]
    fn an_image_lists_its_files_with_sizes_and_digests() {
        let originals = Originals {
            manifest: Bytes::from_static(b"{}"),
            manifest_digest: Digest::of(b"{}"),
            config: Bytes::from_static(b"{ }"),
            id: Digest::of(b"{ }"),
        };
        let top = Digest::of(b"top");
        let image = Image::new(&originals, &["localhost:5000/a:v1".to_owned()], &top, None);
        let value: Value = serde_json::to_value(&image).unwrap();
        let (config, manifest) = (originals.id.to_string(), originals.manifest_digest.to_string());
        assert_eq!(
            value,
            json!({"id": originals.id.hex(), "digest": manifest, "names": ["localhost:5000/a:v1"], "layer": top.hex(),
                "big-data-names": [config, format!("manifest-{manifest}"), "manifest"],
                "big-data-sizes": {config.clone(): 3, format!("manifest-{manifest}"): 2, "manifest": 2},
                "big-data-digests": {config.clone(): config, format!("manifest-{manifest}"): manifest, "manifest": manifest}})
        );
    }

    #[test]
    fn names_of_files_are_plain_or_encoded() {
        assert_eq!(file_name("manifest"), "manifest");
        assert_eq!(file_name("sha256:ab"), "=c2hhMjU2OmFi");
        assert_eq!(file_name("manifest-x"), "=bWFuaWZlc3QteA==");
    }

    #[test]
    fn times_that_go_cannot_read_are_left_out() {
        assert_eq!(created("2023-11-14T23:13:20.5+01:00").as_deref(), Some("2023-11-14T22:13:20.5Z"));
        for text in ["yesterday", "", "2023-11-14"] {
            assert_eq!(created(text), None);
        }
    }

    #[test]
    fn the_content_of_a_lock_is_64_bytes_and_changes() {
        assert_eq!(lock("1").len(), 64);
        assert_ne!(lock("1"), lock("2"));
    }
}

//! Whole images in memory.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tarpon_oci::{Digest, media_type};
use tarpon_registry::serve::Contents;

use super::Layer;

/// Manifest, config and layers of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The config's bytes.
    pub config: Vec<u8>,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
}

/// Builds an image.
#[derive(Debug, Clone, Default)]
pub struct ImageBuilder {
    layers: Vec<Layer>,
    config: BTreeMap<String, Value>,
    architecture: Option<String>,
}

impl ImageBuilder {
    /// An image without layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer on top.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// Sets a field of the run config: `Entrypoint`, `Env` and so on.
    #[must_use]
    pub fn config(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// Sets an architecture other than amd64.
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        self.architecture = Some(architecture.to_owned());
        self
    }

    /// Builds the image.
    pub fn build(self) -> Image {
        let diff_ids: Vec<String> = self.layers.iter().map(|layer| layer.diff_id.to_string()).collect();
        let config = json!({
            "architecture": self.architecture.as_deref().unwrap_or("amd64"),
            "os": "linux",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string().into_bytes();
        let layers: Vec<Value> = self.layers.iter().map(descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "config": {
                "mediaType": media_type::OCI_CONFIG,
                "digest": Digest::of(&config).to_string(),
                "size": config.len(),
            },
            "layers": layers,
        });
        Image { manifest: manifest.to_string().into_bytes(), config, layers: self.layers }
    }
}

fn descriptor(layer: &Layer) -> Value {
    let mut descriptor = json!({
        "mediaType": layer.compression.layer_media_type(),
        "digest": Digest::of(&layer.blob).to_string(),
        "size": layer.blob.len(),
    });
    if !layer.annotations.is_empty() {
        descriptor["annotations"] = json!(layer.annotations);
    }
    descriptor
}

impl Image {
    /// An image of these layers, lowest first, for amd64.
    pub fn of(layers: impl IntoIterator<Item = Layer>) -> Self {
        layers.into_iter().fold(ImageBuilder::new(), ImageBuilder::layer).build()
    }

    /// The manifest's digest, the identity of the image.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// All blobs by digest: manifest, config and layers.
    pub fn blobs(&self) -> BTreeMap<Digest, Vec<u8>> {
        let layers = self.layers.iter().map(|layer| &layer.blob);
        [&self.manifest, &self.config].into_iter().chain(layers).map(|blob| (Digest::of(blob), blob.clone())).collect()
    }

    /// Adds all blobs to `contents`, and the manifest as `repository:tag`.
    pub fn add_to(&self, contents: &mut Contents, repository: &str, tag: &str) {
        for blob in self.blobs().into_values() {
            contents.add_blob(blob);
        }
        contents.add_manifest(Some((repository, tag)), media_type::OCI_MANIFEST, self.manifest.clone());
    }

    /// Writes an OCI image layout that contains the image under `tag`.
    ///
    /// # Panics
    /// The directory is not writable.
    pub fn write_layout(&self, tag: &str, directory: &Path) {
        for (path, bytes) in self.layout(tag) {
            let path = directory.join(path);
            let folder = path.parent().expect("a file of the layout");
            std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, bytes)).expect("a writable directory");
        }
    }

    /// The files of an OCI image layout that contains the image under `tag`, by path.
    pub fn layout(&self, tag: &str) -> BTreeMap<String, Vec<u8>> {
        let index = json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_INDEX,
            "manifests": [{
                "mediaType": media_type::OCI_MANIFEST,
                "digest": self.digest().to_string(),
                "size": self.manifest.len(),
                "annotations": { "org.opencontainers.image.ref.name": tag },
            }],
        });
        let blobs = self.blobs().into_iter().map(|(digest, blob)| (format!("blobs/sha256/{}", digest.hex()), blob));
        let fixed = [
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), index.to_string().into_bytes()),
        ];
        blobs.chain(fixed).collect()
    }
}

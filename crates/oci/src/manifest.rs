//! Manifests and image indexes: parsed from verified bytes, never mistaken for each other.
//!
//! A document that can be read as both (`layers` and `manifests`), or whose `mediaType` differs from the one of the registry or
//! descriptor, is refused: two tools would see two images (CVE-2021-41190).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::descriptor::RawDescriptor;
use crate::media_type::OCI_MANIFEST;
use crate::{
    Compression, Descriptor, Digest, ImageConfig, InvalidManifest, MediaType, Platform, Verified, json, limits,
};

/// The answer to a manifest request.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "one per image, matched at once")]
pub enum Document {
    /// One image, or an artifact.
    Manifest(Manifest),
    /// A choice of images.
    Index(ImageIndex),
}

/// An image manifest. Its bytes are kept because their digest is the image's name.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// The unchanged document.
    pub bytes: Verified<Bytes>,
    /// Its declared type, unchanged, which a descriptor of it must have too. OCI's if it declares none.
    pub media_type: String,
    /// The image config.
    pub config: Descriptor,
    /// The layers, base first.
    pub layers: Vec<Descriptor>,
    /// Annotations of the whole image.
    pub annotations: BTreeMap<String, String>,
    /// The kind of an artifact that is not an image.
    pub artifact_type: Option<String>,
    /// The manifest that an artifact refers to.
    pub subject: Option<Descriptor>,
}

/// An image index (manifest list): one image for several platforms.
#[derive(Debug, Clone)]
pub struct ImageIndex {
    /// The unchanged document.
    pub bytes: Verified<Bytes>,
    /// The choices.
    pub manifests: Vec<Descriptor>,
    /// Annotations of the whole index.
    pub annotations: BTreeMap<String, String>,
    /// The kind of an artifact that is not a choice of images.
    pub artifact_type: Option<String>,
    /// The manifest that an artifact refers to.
    pub subject: Option<Descriptor>,
}

/// No manifest in an index matches.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no image for platform {wanted}; there is {}", list(.available))]
pub struct NoPlatform {
    wanted: Platform,
    available: Vec<Platform>,
}

fn list(platforms: &[Platform]) -> String {
    if platforms.is_empty() {
        return "none for any".to_owned();
    }
    let shown: Vec<String> = platforms.iter().take(20).map(ToString::to_string).collect();
    shown.join(", ")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    #[serde(default, deserialize_with = "present")]
    layers: Option<Vec<RawDescriptor>>,
    #[serde(default, deserialize_with = "present")]
    manifests: Option<Vec<RawDescriptor>>,
    annotations: Option<BTreeMap<String, String>>,
    artifact_type: Option<String>,
    subject: Option<RawDescriptor>,
    fs_layers: Option<IgnoredAny>,
}

/// `null` counts as an existing empty list, so that it cannot hide half of an ambiguous document.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<RawDescriptor>>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.unwrap_or_default()))
}

impl Document {
    /// Parses `bytes`. `declared` is the media type that the registry (`Content-Type`) or the descriptor declares. Unspecific
    /// types, such as `application/json`, are ignored.
    pub fn parse(bytes: Verified<Bytes>, declared: Option<&str>) -> Result<Self, InvalidManifest> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > limits::MANIFEST_BYTES {
            return Err(InvalidManifest::TooLarge { size });
        }
        let declared = declared.map(MediaType::parse);
        if declared == Some(MediaType::DockerSchema1) {
            return Err(InvalidManifest::Schema1);
        }
        json::check(&bytes)?;
        let raw: RawDocument = serde_json::from_slice(&bytes)?;
        let shape = raw.shape()?;
        let stated = raw.media_type.as_deref().filter(|text| !text.is_empty()).map(MediaType::parse);
        for (whose, media_type) in [("its mediaType", &stated), ("what it was served as", &declared)] {
            match media_type {
                Some(claimed @ (MediaType::Manifest | MediaType::Index)) if *claimed != shape => {
                    let text = format!("{whose} is {claimed}, its content is {shape}");
                    return Err(InvalidManifest::Ambiguous(text));
                }
                Some(MediaType::DockerSchema1) => return Err(InvalidManifest::Schema1),
                Some(MediaType::Other(other)) if whose == "its mediaType" => {
                    return Err(InvalidManifest::Unknown(format!(": mediaType {other:?}")));
                }
                _ => {}
            }
        }
        match shape {
            MediaType::Index => Ok(Self::Index(raw.into_index(bytes)?)),
            _ => Ok(Self::Manifest(raw.into_manifest(bytes)?)),
        }
    }
}

impl RawDocument {
    /// The kind of the document by its keys: [`MediaType::Manifest`] or [`MediaType::Index`].
    fn shape(&self) -> Result<MediaType, InvalidManifest> {
        if self.fs_layers.is_some() || self.schema_version == Some(1) {
            return Err(InvalidManifest::Schema1);
        }
        match (&self.layers, &self.manifests, &self.config) {
            (Some(_), Some(_), _) => Err(InvalidManifest::Ambiguous("it has both layers and manifests".to_owned())),
            (None, Some(_), Some(_)) => {
                Err(InvalidManifest::Ambiguous("it has both a config and manifests".to_owned()))
            }
            (None, Some(_), None) => Ok(MediaType::Index),
            (Some(_), None, Some(_)) => Ok(MediaType::Manifest),
            (Some(_), None, None) => Err(InvalidManifest::Unknown(": it has layers but no config".to_owned())),
            (None, None, _) => Err(InvalidManifest::Unknown(String::new())),
        }
    }

    fn into_manifest(self, bytes: Verified<Bytes>) -> Result<Manifest, InvalidManifest> {
        let config = self.config.ok_or_else(|| InvalidManifest::Unknown(": it has no config".to_owned()))?;
        let layers = self.layers.unwrap_or_default();
        if layers.len() > limits::LAYERS {
            return Err(InvalidManifest::TooManyLayers(layers.len()));
        }
        Ok(Manifest {
            bytes,
            media_type: self.media_type.filter(|text| !text.is_empty()).unwrap_or_else(|| OCI_MANIFEST.to_owned()),
            config: config.try_into()?,
            layers: descriptors(layers)?,
            annotations: self.annotations.unwrap_or_default(),
            artifact_type: self.artifact_type.filter(|kind| !kind.is_empty()),
            subject: self.subject.map(Descriptor::try_from).transpose()?,
        })
    }

    fn into_index(self, bytes: Verified<Bytes>) -> Result<ImageIndex, InvalidManifest> {
        Ok(ImageIndex {
            bytes,
            manifests: descriptors(self.manifests.unwrap_or_default())?,
            annotations: self.annotations.unwrap_or_default(),
            artifact_type: self.artifact_type.filter(|kind| !kind.is_empty()),
            subject: self.subject.map(Descriptor::try_from).transpose()?,
        })
    }
}

fn descriptors(raw: Vec<RawDescriptor>) -> Result<Vec<Descriptor>, InvalidManifest> {
    raw.into_iter().map(Descriptor::try_from).collect()
}

impl Manifest {
    /// Parses a manifest; an index is an error.
    pub fn parse(bytes: Verified<Bytes>) -> Result<Self, InvalidManifest> {
        match Document::parse(bytes, None)? {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(_) => Err(InvalidManifest::NestedIndex),
        }
    }

    /// The image's name.
    pub fn digest(&self) -> &Digest {
        self.bytes.digest()
    }

    /// Checks that this is a container image and that every layer is of a kind that can be read.
    pub fn check_image(&self) -> Result<(), InvalidManifest> {
        if let Some(kind) = &self.artifact_type {
            return Err(InvalidManifest::NotAnImage(format!("its artifactType is {kind:?}")));
        }
        if self.config.media_type != MediaType::Config {
            let text = format!("its config is {}", self.config.media_type);
            return Err(InvalidManifest::NotAnImage(text));
        }
        if self.config.size > limits::MANIFEST_BYTES {
            return Err(InvalidManifest::TooLarge { size: self.config.size });
        }
        for (at, layer) in self.layers.iter().enumerate() {
            let (number, digest) = (at + 1, layer.digest);
            match &layer.media_type {
                MediaType::Layer(_) => {}
                MediaType::ForeignLayer => return Err(InvalidManifest::ForeignLayer { number, digest }),
                MediaType::Other(text) => {
                    return Err(InvalidManifest::LayerType { number, digest, media_type: text.clone() });
                }
                other => {
                    return Err(InvalidManifest::LayerType { number, digest, media_type: other.to_string() });
                }
            }
        }
        Ok(())
    }

    /// Checks that `config` describes as many layers as there are.
    pub fn check_config(&self, config: &ImageConfig) -> Result<(), InvalidManifest> {
        let (layers, diff_ids) = (self.layers.len(), config.diff_ids.len());
        if layers == diff_ids { Ok(()) } else { Err(InvalidManifest::LayerCount { layers, diff_ids }) }
    }

    /// The compression of layer `at`. `None` if there is no such layer or it is of no readable kind.
    pub fn compression(&self, at: usize) -> Option<Compression> {
        match self.layers.get(at)?.media_type {
            MediaType::Layer(compression) => Some(compression),
            _ => None,
        }
    }

    /// Compressed bytes of all layers.
    pub fn layers_size(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }
}

impl ImageIndex {
    /// Parses an index; a manifest is an error.
    pub fn parse(bytes: Verified<Bytes>) -> Result<Self, InvalidManifest> {
        match Document::parse(bytes, None)? {
            Document::Index(index) => Ok(index),
            Document::Manifest(_) => Err(InvalidManifest::Unknown(": a manifest where an index must be".to_owned())),
        }
    }

    /// The manifest that runs best on `platform`. Of equal ones the first. Artifacts and attestations are skipped.
    pub fn select(&self, platform: &Platform) -> Result<&Descriptor, NoPlatform> {
        let rank = |descriptor: &Descriptor| match &descriptor.platform {
            Some(built) => platform.distance(built),
            // An index of one image may omit the platform.
            None => Some(u32::MAX),
        };
        self.images()
            .filter_map(|descriptor| Some((rank(descriptor)?, descriptor)))
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, descriptor)| descriptor)
            .ok_or_else(|| NoPlatform {
                wanted: platform.clone(),
                available: self.images().filter_map(|descriptor| descriptor.platform.clone()).collect(),
            })
    }

    /// The runnable images among the manifests.
    pub fn images(&self) -> impl Iterator<Item = &Descriptor> {
        self.manifests.iter().filter(|descriptor| {
            let unknown =
                descriptor.platform.as_ref().is_some_and(|p| p.os() == "unknown" || p.architecture() == "unknown");
            descriptor.media_type == MediaType::Manifest
                && descriptor.artifact_type.is_none()
                && !unknown
                && !descriptor.annotations.contains_key("vnd.docker.reference.type")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media_type::{DOCKER_MANIFEST, OCI_CONFIG, OCI_INDEX};

    fn digest(of: &str) -> String {
        Digest::of(of.as_bytes()).to_string()
    }

    fn entry(name: &str, platform: &str, extra: &str) -> String {
        let platform = match platform.split_once('/') {
            Some((os, architecture)) => {
                let (architecture, variant) = architecture.split_once('/').unwrap_or((architecture, ""));
                format!(r#","platform":{{"os":"{os}","architecture":"{architecture}","variant":"{variant}"}}"#)
            }
            None => String::new(),
        };
        format!(r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":7{platform}{extra}}}"#, digest(name))
    }

    fn index(entries: &[String]) -> ImageIndex {
        let text = format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{}]}}"#, entries.join(","));
        ImageIndex::parse(Verified::seal(Bytes::from(text))).unwrap()
    }

    fn manifest(layers: &str) -> Manifest {
        let config = format!(r#"{{"mediaType":"{OCI_CONFIG}","digest":"{}","size":2}}"#, digest("config"));
        let text = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layers}]}}"#);
        Manifest::parse(Verified::seal(Bytes::from(text))).unwrap()
    }

    #[test]
    fn the_nearest_platform_is_selected_and_artifacts_are_passed_over() {
        let index = index(&[
            entry("soci", "linux/arm/v7", r#","artifactType":"application/vnd.amazon.soci.index.v2+json""#),
            entry("attestation", "unknown/unknown", ""),
            entry("v5", "linux/arm/v5", ""),
            entry("v6", "linux/arm/v6", ""),
            entry("arm64", "linux/arm64/v8", ""),
        ]);
        let pick = |platform: &str| index.select(&platform.parse().unwrap()).map(|found| found.digest.to_string());
        assert_eq!(pick("linux/arm/v7").unwrap(), digest("v6"));
        assert_eq!(pick("linux/arm/v5").unwrap(), digest("v5"));
        assert_eq!(pick("linux/arm64").unwrap(), digest("arm64"));
        assert_eq!(
            pick("linux/amd64").unwrap_err().to_string(),
            "no image for platform linux/amd64; there is linux/arm/v5, linux/arm/v6, linux/arm64"
        );
    }

    #[test]
    fn an_entry_without_platform_is_the_last_resort() {
        let index = index(&[entry("any", "", ""), entry("amd64", "linux/amd64", "")]);
        assert_eq!(index.select(&"linux/amd64".parse().unwrap()).unwrap().digest.to_string(), digest("amd64"));
        assert_eq!(index.select(&"linux/riscv64".parse().unwrap()).unwrap().digest.to_string(), digest("any"));
    }

    #[test]
    fn what_it_was_served_as_must_agree() {
        let bytes = manifest("").bytes;
        for declared in [OCI_MANIFEST, DOCKER_MANIFEST, "application/json", "text/plain; charset=utf-8"] {
            assert!(Document::parse(bytes.clone(), Some(declared)).is_ok(), "{declared}");
        }
        assert!(matches!(Document::parse(bytes, Some(OCI_INDEX)), Err(InvalidManifest::Ambiguous(_))));
    }

    #[test]
    fn a_manifest_of_dockers_first_schema_is_refused_by_each_of_its_marks() {
        let bytes = manifest("").bytes;
        for schema1 in
            ["json", "prettyjws"].map(|form| format!("application/vnd.docker.distribution.manifest.v1+{form}"))
        {
            let served = Document::parse(bytes.clone(), Some(&schema1));
            assert!(matches!(served, Err(InvalidManifest::Schema1)), "{schema1}");
            let text = str::from_utf8(&bytes).unwrap();
            let stated = text.replacen('{', &format!(r#"{{"mediaType":"{schema1}","#), 1);
            let stated = Document::parse(Verified::seal(Bytes::from(stated)), Some(OCI_MANIFEST));
            assert!(matches!(stated, Err(InvalidManifest::Schema1)), "{schema1}");
        }
    }

    #[test]
    fn layers_that_cannot_be_read_are_named() {
        let layer = |media_type: &str| format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":2}}"#, digest("l"));
        let gzip = layer(Compression::Gzip.layer_media_type());
        let image = manifest(&gzip);
        image.check_image().unwrap();
        assert_eq!(image.compression(0), Some(Compression::Gzip));
        let foreign =
            manifest(&format!("{gzip},{}", layer("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")));
        assert!(matches!(foreign.check_image(), Err(InvalidManifest::ForeignLayer { number: 2, .. })));
        let strange = manifest(&layer("application/vnd.oci.image.layer.v1.tar+lz4"));
        assert!(matches!(strange.check_image(), Err(InvalidManifest::LayerType { number: 1, .. })));
    }

    #[test]
    fn too_many_layers_are_refused() {
        let layer = format!(r#"{{"mediaType":"x","digest":"{}","size":2}}"#, digest("l"));
        let config = format!(r#"{{"mediaType":"{OCI_CONFIG}","digest":"{}","size":2}}"#, digest("config"));
        let layers = vec![layer; limits::LAYERS + 1].join(",");
        let text = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layers}]}}"#);
        let error = Manifest::parse(Verified::seal(Bytes::from(text))).unwrap_err();
        assert!(matches!(error, InvalidManifest::TooManyLayers(n) if n == limits::LAYERS + 1));
    }

    /// A manifest of exactly this many bytes, whose config and layer have these sizes.
    fn sized(bytes: u64, config: u64, layer: u64) -> Result<Document, InvalidManifest> {
        let descriptor = |media_type: &str, size: u64| {
            format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":{size}}}"#, digest("x"))
        };
        let (config, layer) = (descriptor(OCI_CONFIG, config), descriptor(Compression::Gzip.layer_media_type(), layer));
        let mut text = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#);
        let padding = usize::try_from(bytes).unwrap().saturating_sub(text.len());
        text.push_str(&" ".repeat(padding));
        Document::parse(Verified::seal(Bytes::from(text)), None)
    }

    #[test]
    fn documents_configs_and_blobs_may_be_as_large_as_their_limits_and_not_larger() {
        let checked = |document| match document {
            Ok(Document::Manifest(manifest)) => manifest.check_image(),
            Ok(Document::Index(_)) => panic!("no index was written"),
            Err(error) => Err(error),
        };
        let most = limits::MANIFEST_BYTES;
        assert!(checked(sized(most, most, limits::BLOB_BYTES)).is_ok());
        let (one, two) = (checked(sized(most + 1, 2, 2)), checked(sized(0, most + 1, 2)));
        for too_large in [one, two] {
            assert!(matches!(too_large, Err(InvalidManifest::TooLarge { size }) if size == most + 1));
        }
        let blob = sized(0, 2, limits::BLOB_BYTES + 1);
        assert!(matches!(blob, Err(InvalidManifest::BlobTooLarge { size, .. }) if size == limits::BLOB_BYTES + 1));
    }

    #[test]
    fn an_image_may_have_as_many_layers_as_the_limit() {
        let layer = format!(r#"{{"mediaType":"x","digest":"{}","size":2}}"#, digest("l"));
        let image = manifest(&vec![layer; limits::LAYERS].join(","));
        assert_eq!((image.layers.len(), image.layers_size()), (limits::LAYERS, 2 * limits::LAYERS as u64));
    }

    #[test]
    fn a_config_that_describes_another_number_of_layers_is_refused() {
        let layer = format!(r#"{{"mediaType":"x","digest":"{}","size":2}}"#, digest("l"));
        let config = |diff_ids: &[String]| {
            let diff_ids: Vec<String> = diff_ids.iter().map(|digest| format!("\"{digest}\"")).collect();
            let rootfs = format!(r#"{{"type":"layers","diff_ids":[{}]}}"#, diff_ids.join(","));
            let text = format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{rootfs}}}"#);
            ImageConfig::parse(Verified::seal(Bytes::from(text))).unwrap()
        };
        let image = manifest(&layer);
        image.check_config(&config(&[digest("l")])).unwrap();
        for diff_ids in [vec![], vec![digest("l"), digest("m")]] {
            let refused = image.check_config(&config(&diff_ids));
            assert!(
                matches!(refused, Err(InvalidManifest::LayerCount { layers: 1, diff_ids: n }) if n == diff_ids.len())
            );
        }
    }

    #[test]
    fn an_empty_media_type_or_artifact_type_is_none() {
        let config = format!(r#"{{"mediaType":"{OCI_CONFIG}","digest":"{}","size":2}}"#, digest("config"));
        let text = |kind: &str| {
            format!(r#"{{"mediaType":"","artifactType":"{kind}","config":{config},"layers":[],"schemaVersion":2}}"#)
        };
        let manifest = |kind| Manifest::parse(Verified::seal(Bytes::from(text(kind)))).unwrap();
        assert_eq!((manifest("").media_type.as_str(), manifest("").artifact_type), (OCI_MANIFEST, None));
        assert_eq!(manifest("a/b").artifact_type.as_deref(), Some("a/b"));
        let index = |kind: &str| {
            let text = format!(r#"{{"artifactType":"{kind}","manifests":[],"schemaVersion":2}}"#);
            ImageIndex::parse(Verified::seal(Bytes::from(text))).unwrap()
        };
        assert_eq!((index("").artifact_type, index("a/b").artifact_type.as_deref()), (None, Some("a/b")));
    }
}

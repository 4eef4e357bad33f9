//! Artifacts: content stored in a registry beside images, such as an index of an image's files.
//!
//! An artifact is an image manifest with an `artifactType`, the empty config and blobs of its own types as layers
//! (image spec 1.1, "Guidelines for Artifact Usage"). The older ways to write one are refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use crate::media_type::{EMPTY_JSON, OCI_MANIFEST};
use crate::{Blob, Descriptor, Digest, InvalidManifest, Manifest, MediaType, NewDescriptor, Verified, media_type};

/// The content of the empty config: an empty JSON object.
pub const EMPTY_CONFIG: &[u8] = b"{}";

/// The manifest of an artifact.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// The unchanged document.
    pub bytes: Verified<Bytes>,
    /// The kind of artifact, a media type.
    pub artifact_type: String,
    /// Its blobs. Never empty.
    pub layers: Vec<Descriptor>,
    /// Free-form metadata.
    pub annotations: BTreeMap<String, String>,
    /// The manifest that it refers to.
    pub subject: Option<Descriptor>,
}

impl Artifact {
    /// Parses the manifest of an artifact; an image, an index and artifacts of other shapes are errors.
    pub fn parse(bytes: Verified<Bytes>) -> Result<Self, InvalidManifest> {
        let refused = |why: String| Err(InvalidManifest::NotAnArtifact(why));
        let Manifest { bytes, config, layers, annotations, artifact_type, subject, .. } = Manifest::parse(bytes)?;
        let Some(artifact_type) = artifact_type else {
            return refused("it has no artifactType".to_owned());
        };
        if !media_type::is_valid(&artifact_type) {
            let shown: String = artifact_type.chars().take(100).collect();
            return refused(format!("its artifactType is {shown:?}"));
        }
        if config.media_type != MediaType::Other(EMPTY_JSON.to_owned()) {
            return refused(format!("its config is {}", config.media_type));
        }
        if config.blob() != empty_config() {
            return refused(format!("its empty config is {} of {} bytes", config.digest, config.size));
        }
        if layers.is_empty() {
            return refused("it has no layers".to_owned());
        }
        Ok(Self { bytes, artifact_type, layers, annotations, subject })
    }

    /// The artifact's name.
    pub fn digest(&self) -> &Digest {
        self.bytes.digest()
    }
}

/// The blob of [`EMPTY_CONFIG`]. A registry must have it before it accepts an artifact.
pub fn empty_config() -> Blob {
    Blob { digest: Digest::of(EMPTY_CONFIG), size: EMPTY_CONFIG.len() as u64 }
}

/// An artifact to be written.
#[derive(Debug, Clone)]
pub struct NewArtifact {
    /// The kind of artifact, a media type.
    pub artifact_type: String,
    /// Its blobs.
    pub layers: Vec<NewDescriptor>,
    /// Free-form metadata.
    pub annotations: BTreeMap<String, String>,
    /// The manifest that it refers to.
    pub subject: Option<NewDescriptor>,
}

impl NewArtifact {
    /// The manifest, of type [`OCI_MANIFEST`]. Equal artifacts have equal bytes. An error if [`Artifact::parse`] would refuse it.
    pub fn manifest(&self) -> Result<Verified<Bytes>, InvalidManifest> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            schema_version: u8,
            media_type: &'a str,
            artifact_type: &'a str,
            config: NewDescriptor,
            layers: &'a [NewDescriptor],
            #[serde(skip_serializing_if = "Option::is_none")]
            subject: Option<&'a NewDescriptor>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            annotations: &'a BTreeMap<String, String>,
        }
        let document = Document {
            schema_version: 2,
            media_type: OCI_MANIFEST,
            artifact_type: &self.artifact_type,
            config: NewDescriptor::new(EMPTY_JSON, empty_config()),
            layers: &self.layers,
            subject: self.subject.as_ref(),
            annotations: &self.annotations,
        };
        let bytes = Verified::seal(Bytes::from(serde_json::to_vec(&document)?));
        Ok(Artifact::parse(bytes)?.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    const KIND: &str = "application/vnd.example.index.v1";

    fn descriptor(of: &str) -> NewDescriptor {
        NewDescriptor::new("application/x", Blob { digest: Digest::of(of.as_bytes()), size: 7 })
    }

    fn artifact() -> NewArtifact {
        NewArtifact {
            artifact_type: KIND.to_owned(),
            layers: vec![descriptor("tree"), descriptor("chunks")],
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            subject: Some(NewDescriptor { media_type: OCI_MANIFEST.to_owned(), ..descriptor("image") }),
        }
    }

    fn parse(text: &str) -> Result<Artifact, InvalidManifest> {
        Artifact::parse(Verified::seal(Bytes::from(text.to_owned())))
    }

    /// The manifest of [`artifact`] with `from` replaced.
    fn spoilt(from: &str, to: &str) -> Result<Artifact, InvalidManifest> {
        let text = String::from_utf8(artifact().manifest().unwrap().to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        parse(&text.replace(from, to))
    }

    #[test]
    fn what_is_written_is_read() {
        let written = artifact();
        let read = Artifact::parse(written.manifest().unwrap()).unwrap();
        assert_eq!(read.artifact_type, KIND);
        assert_eq!(
            read.layers.iter().map(Descriptor::blob).collect::<Vec<_>>(),
            [descriptor("tree").blob(), descriptor("chunks").blob()]
        );
        assert_eq!(read.subject.unwrap().blob(), descriptor("image").blob());
        assert_eq!(read.annotations, written.annotations);
        assert_eq!(read.bytes, artifact().manifest().unwrap(), "equal artifacts have equal bytes");
    }

    #[test]
    fn an_artifact_is_no_image() {
        let manifest = Manifest::parse(artifact().manifest().unwrap()).unwrap();
        assert!(matches!(manifest.check_image(), Err(InvalidManifest::NotAnImage(_))));
    }

    #[test]
    fn artifacts_of_other_shapes_are_refused() {
        let empty = Digest::of(EMPTY_CONFIG).to_string();
        let other = Digest::of(b"other").to_string();
        for (from, to) in [
            (r#""artifactType":"application/vnd.example.index.v1","#, ""),
            (KIND, ""),
            (KIND, "no media type"),
            (KIND, "a/b\\n"),
            (EMPTY_JSON, "application/vnd.oci.image.config.v1+json"),
            (EMPTY_JSON, "application/vnd.cncf.helm.config.v1+json"),
            (&*empty, &*other),
            (r#""size":2"#, r#""size":3"#),
            (r#""layers":["#, r#""blobs":["#),
        ] {
            assert!(spoilt(from, to).is_err(), "{from} → {to}");
        }
        let none = NewArtifact { layers: Vec::new(), ..artifact() };
        assert!(matches!(none.manifest(), Err(InvalidManifest::NotAnArtifact(_))));
        let many = NewArtifact { layers: vec![descriptor("x"); limits::LAYERS + 1], ..artifact() };
        assert!(matches!(many.manifest(), Err(InvalidManifest::TooManyLayers(_))));
    }

    #[test]
    fn documents_with_two_readings_are_refused() {
        for (from, to) in [
            (r#""layers":["#, r#""manifests":[],"layers":["#),
            (r#""artifactType":"#, r#""ArtifactType":"x/y","artifactType":"#),
            (r#""subject":{"#, r#""subject":[{},"#),
            (OCI_MANIFEST, "application/vnd.oci.image.index.v1+json"),
            (r#""size":7"#, r#""size":99999999999999999"#),
            (r#""size":7"#, r#""size":-1"#),
        ] {
            assert!(spoilt(from, to).is_err(), "{from} → {to}");
        }
    }
}

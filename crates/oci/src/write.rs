//! Written documents: descriptors, and indexes with one more entry.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::media_type::OCI_INDEX;
use crate::{Blob, Descriptor, Digest, ImageIndex, InvalidManifest, Platform, Verified};

/// A descriptor to be written. Unlike [`Descriptor`] it keeps its media type unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewDescriptor {
    /// The type of the blob.
    pub media_type: String,
    /// Its name.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The kind of an artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The platform of an image in an index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Free-form metadata.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl NewDescriptor {
    /// A descriptor of `blob`, without annotations.
    pub fn new(media_type: impl Into<String>, blob: Blob) -> Self {
        Self {
            media_type: media_type.into(),
            digest: blob.digest,
            size: blob.size,
            artifact_type: None,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    /// The blob of the descriptor.
    pub fn blob(&self) -> Blob {
        Blob { digest: self.digest, size: self.size }
    }
}

impl ImageIndex {
    /// An empty index.
    pub fn empty() -> Self {
        let text = format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[]}}"#);
        Self::parse(Verified::seal(Bytes::from(text))).expect("this is an index")
    }

    /// This index with `entry` at its end and without the entries that it `replaces`. Everything else stays unchanged, byte for
    /// byte. An error if the result exceeds the limits of an index.
    pub fn with(&self, entry: &NewDescriptor, replaces: impl Fn(&Descriptor) -> bool) -> Result<Self, InvalidManifest> {
        self.changed(Some(entry), replaces)
    }

    /// This index without the entries that are `removed`, otherwise as [`ImageIndex::with`].
    pub fn without(&self, removed: impl Fn(&Descriptor) -> bool) -> Result<Self, InvalidManifest> {
        self.changed(None, removed)
    }

    fn changed(
        &self,
        entry: Option<&NewDescriptor>,
        removed: impl Fn(&Descriptor) -> bool,
    ) -> Result<Self, InvalidManifest> {
        let mut document: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&self.bytes)?;
        let entries: Option<Vec<Box<RawValue>>> = match document.get("manifests") {
            Some(entries) => serde_json::from_str(entries.get())?,
            None => None,
        };
        let entries = entries.unwrap_or_default().into_iter().zip(&self.manifests);
        let mut kept: Vec<_> = entries.filter(|(_, read)| !removed(read)).map(|(raw, _)| raw).collect();
        if let Some(entry) = entry {
            kept.push(to_raw_value(entry)?);
        }
        document.insert("manifests".to_owned(), to_raw_value(&kept)?);
        Self::parse(Verified::seal(Bytes::from(serde_json::to_vec(&document)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    fn entry(name: &str) -> NewDescriptor {
        let blob = Blob { digest: Digest::of(name.as_bytes()), size: 7 };
        let annotations = [("name".to_owned(), name.to_owned())].into();
        NewDescriptor { annotations, ..NewDescriptor::new("application/x", blob) }
    }

    fn names(index: &ImageIndex) -> Vec<&str> {
        index.manifests.iter().map(|found| found.annotations["name"].as_str()).collect()
    }

    #[test]
    fn an_entry_is_added_and_another_replaced() {
        let none = |_: &Descriptor| false;
        let index = ImageIndex::empty().with(&entry("a"), none).unwrap().with(&entry("b"), none).unwrap();
        assert_eq!(names(&index), ["a", "b"]);
        let index = index.with(&entry("c"), |found| found.annotations["name"] == "a").unwrap();
        assert_eq!(names(&index), ["b", "c"]);
        assert_eq!(names(&index.without(|found| found.annotations["name"] == "b").unwrap()), ["c"]);
    }

    #[test]
    fn unknown_fields_stay_unchanged() {
        let odd = r#"{"mediaType":"x/y","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0, "data":"e30=","strange":{"a":1.50}}"#;
        let text = format!(r#"{{"schemaVersion":2,"unknown":[1e3],"manifests":[{odd}]}}"#);
        let index = ImageIndex::parse(Verified::seal(Bytes::from(text))).unwrap();
        let index = index.with(&entry("a"), |_| false).unwrap();
        let written = String::from_utf8(index.bytes.to_vec()).unwrap();
        assert!(written.contains(odd) && written.contains(r#""unknown":[1e3]"#), "{written}");
    }

    #[test]
    fn an_index_does_not_grow_beyond_what_can_be_read() {
        let long = "x".repeat(usize::try_from(limits::MANIFEST_BYTES).unwrap());
        let error = ImageIndex::empty().with(&entry(&long), |_| false).unwrap_err();
        assert!(matches!(error, InvalidManifest::TooLarge { .. }), "{error}");
    }
}

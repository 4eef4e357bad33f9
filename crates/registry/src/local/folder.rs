//! The images in a folder: those of an OCI layout, or of each OCI layout directly in it.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{ImageIndex, Source, Verified, limits};

use super::archive::read_file;
use super::layout::{REF_NAME, failed};

/// The file that makes a folder an OCI layout.
const INDEX: &str = "index.json";

/// The images in a folder, in the order of the folders' names. Blocks on the local disk.
///
/// # Errors
/// The folder cannot be read, it has no layout, or an index is damaged.
pub fn images_in(folder: &Path) -> Result<Vec<Source>, SourceError> {
    if folder.join(INDEX).exists() {
        return images_of(folder);
    }
    let reading = |error| failed("reading the folder", &error);
    let mut layouts: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(reading)? {
        let layout = entry.map_err(reading)?.path();
        if layout.join(INDEX).exists() {
            layouts.push(layout);
        }
    }
    layouts.sort();
    if layouts.is_empty() {
        return Err(SourceError::new(Fault::NotFound, "it contains no OCI layout".to_owned()));
    }
    layouts.iter().map(|layout| images_of(layout)).collect::<Result<Vec<_>, _>>().map(|images| images.concat())
}

/// The images of one layout. Those of one name are one image, for several platforms.
fn images_of(layout: &Path) -> Result<Vec<Source>, SourceError> {
    let doing = layout.join(INDEX).display().to_string();
    let bytes: Bytes =
        read_file(&layout.join(INDEX), limits::MANIFEST_BYTES).map_err(|error| failed(&doing, &error))?;
    let index = ImageIndex::parse(Verified::seal(bytes))
        .map_err(|error| SourceError::new(Fault::BadData, format!("{doing}: {error}")))?;
    let mut images = Vec::new();
    for found in index.manifests.iter().filter(|found| found.artifact_type.is_none()) {
        let name = found.annotations.get(REF_NAME).cloned();
        let tag = Some(name.unwrap_or_else(|| format!("@{}", found.digest)));
        let image = Source::OciLayout { directory: layout.to_owned(), tag };
        if !images.contains(&image) {
            images.push(image);
        }
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;

    fn layout(folder: &Path, names: &[Option<&str>]) {
        let manifest = |(number, name): (usize, &Option<&str>)| {
            let annotations =
                name.map(|name| format!(r#","annotations":{{"{REF_NAME}":"{name}"}}"#)).unwrap_or_default();
            let digest = Digest::of(number.to_string().as_bytes());
            format!(
                r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":7{annotations}}}"#
            )
        };
        let manifests: Vec<String> = names.iter().enumerate().map(manifest).collect();
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(INDEX), format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, manifests.join(",")))
            .unwrap();
    }

    fn shown(folder: &Path) -> Vec<String> {
        images_in(folder).unwrap().iter().map(|image| image.to_string().replace(folder.to_str().unwrap(), "")).collect()
    }

    #[test]
    fn a_folder_is_a_layout_or_has_some() {
        let folder = tempfile::tempdir().unwrap();
        layout(&folder.path().join("b"), &[Some("v1"), Some("v1"), Some("v2")]);
        layout(&folder.path().join("a"), &[None]);
        fs::create_dir(folder.path().join("other")).unwrap();
        let unnamed = format!("oci:/a@{}", Digest::of(b"0"));
        assert_eq!(shown(folder.path()), [unnamed.as_str(), "oci:/b:v1", "oci:/b:v2"]);
        assert_eq!(shown(&folder.path().join("b")), ["oci::v1", "oci::v2"]);
    }

    #[test]
    fn a_folder_without_layouts_and_a_damaged_layout_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let message = || images_in(folder.path()).unwrap_err().to_string();
        assert!(message().contains("no OCI layout"), "{}", message());
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a").join(INDEX), "{").unwrap();
        assert!(message().contains("a/index.json"), "{}", message());
    }
}

//! Deletes a manifest from an OCI layout, with the blobs that nothing else in the layout names.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;
use tarpon_blob::SourceError;
use tarpon_oci::{Digest, Document, ImageIndex, Verified, limits};

use super::archive::read_file;
use super::blobs::blocking;
use super::write::{LayoutWriter, blob_path, failed, refused, write};

impl LayoutWriter {
    /// Removes the manifest `digest` and what only it names. `false`: there was none.
    pub(crate) async fn remove(&self, digest: Digest) -> Result<bool, SourceError> {
        let _guard = self.index.lock().await;
        let directory = self.directory.clone();
        blocking(move || manifest(&directory, &digest)).await
    }
}

/// Removes the manifest `digest` from `index.json`, then the files. `false`: it was not listed.
fn manifest(directory: &Path, digest: &Digest) -> Result<bool, SourceError> {
    let path = directory.join("index.json");
    let index = match read_file(&path, limits::MANIFEST_BYTES) {
        Ok(bytes) => ImageIndex::parse(Verified::seal(bytes)).map_err(|error| refused(directory, &error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(directory, "index.json")(error)),
    };
    if !index.manifests.iter().any(|found| found.digest == *digest) {
        return Ok(false);
    }
    let kept = index.without(|found| found.digest == *digest).map_err(|error| refused(directory, &error))?;
    write(directory, &path, &kept.bytes).map_err(failed(directory, "index.json"))?;
    let Some(mut orphans) = named_by(directory, digest) else { return Ok(true) };
    orphans.insert(*digest);
    for found in &kept.manifests {
        match named_below(directory, &found.digest) {
            Some(named) => orphans.retain(|digest| !named.contains(digest)),
            // What it names is not known, so nothing is deleted.
            None => return Ok(true),
        }
    }
    for orphan in orphans {
        match fs::remove_file(blob_path(directory, &orphan)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(directory, "a blob")(error)),
            _ => {}
        }
    }
    Ok(true)
}

fn read(directory: &Path, digest: &Digest) -> Option<Document> {
    let bytes: Bytes = read_file(&blob_path(directory, digest), limits::MANIFEST_BYTES).ok()?;
    Document::parse(Verified::check(digest, bytes).ok()?, None).ok()
}

/// The digests that a document names. `None`: it cannot be read.
fn named_by(directory: &Path, digest: &Digest) -> Option<HashSet<Digest>> {
    Some(match read(directory, digest)? {
        Document::Manifest(manifest) => {
            manifest.layers.iter().chain([&manifest.config]).map(|part| part.digest).collect()
        }
        Document::Index(index) => index.manifests.iter().map(|part| part.digest).collect(),
    })
}

/// The digests that a document and the manifests in it name, and its own.
fn named_below(directory: &Path, digest: &Digest) -> Option<HashSet<Digest>> {
    let mut named = named_by(directory, digest)?;
    if let Document::Index(index) = read(directory, digest)? {
        for found in &index.manifests {
            // Layouts often lack platforms that were not copied.
            named.extend(named_by(directory, &found.digest).unwrap_or_default());
        }
    }
    named.insert(*digest);
    Some(named)
}

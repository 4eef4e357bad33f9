//! OCI layouts: a directory, or the same in a tar.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{Descriptor, Digest, ImageIndex, Platform, Verified, limits};

use super::BlobPlace;
use super::archive::{Archive, read_file};
use super::blobs::LocalBlobs;
use crate::stats::Counters;

/// The annotation that names an image in a layout.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// `index.json` of a layout, and which image to select.
pub(crate) struct LayoutIndex {
    index: ImageIndex,
    tag: Option<String>,
}

/// Opens the layout in `directory`. Blocks on the local disk.
pub(crate) fn open_directory(
    directory: &Path,
    tag: Option<String>,
    counters: Arc<Counters>,
) -> Result<(LayoutIndex, LocalBlobs), SourceError> {
    let name = format!("oci:{}", directory.display());
    let index = read_file(&directory.join("index.json"), limits::MANIFEST_BYTES);
    let index = LayoutIndex::parse(index.map_err(|error| failed("index.json", &error))?, tag)?;
    Ok((index, LocalBlobs::directory(directory.to_owned(), name, counters)))
}

/// Opens the layout in the tar `file`. Blocks on the local disk.
pub(crate) fn open_archive(
    file: &Path,
    tag: Option<String>,
    counters: Arc<Counters>,
) -> Result<(LayoutIndex, LocalBlobs), SourceError> {
    let name = format!("oci-archive:{}", file.display());
    let archive = Archive::open(file).map_err(|error| failed("reading the archive", &error))?;
    let index = archive.read("index.json", limits::MANIFEST_BYTES);
    let index = LayoutIndex::parse(index.map_err(|error| failed("index.json", &error))?, tag)?;
    let blobs = archive.files().filter_map(|(path, place)| {
        let digest = Digest::from_hex(path.strip_prefix("blobs/sha256/")?).ok()?;
        Some((digest, place.clone()))
    });
    let blobs: HashMap<Digest, BlobPlace> = blobs.collect();
    Ok((index, LocalBlobs::places(blobs, name, counters)))
}

pub(super) fn failed(doing: &str, error: &io::Error) -> SourceError {
    let fault = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Fault::NotFound,
        io::ErrorKind::PermissionDenied => Fault::Denied,
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Fault::BadData,
        _ => Fault::Unavailable,
    };
    SourceError::new(fault, format!("{doing}: {error}"))
}

impl LayoutIndex {
    fn parse(bytes: Bytes, tag: Option<String>) -> Result<Self, SourceError> {
        let index = ImageIndex::parse(Verified::seal(bytes))
            .map_err(|error| SourceError::new(Fault::BadData, format!("index.json: {error}")))?;
        Ok(Self { index, tag })
    }

    /// All entries of `index.json`.
    pub(super) fn manifests(&self) -> &[Descriptor] {
        &self.index.manifests
    }

    /// The manifest or index that the tag names, or the only one. Of several manifests under one name, the one for `platform`.
    pub(crate) fn select(&self, platform: &Platform) -> Result<&Descriptor, SourceError> {
        let not_found = |why: String| SourceError::new(Fault::NotFound, why);
        let candidates: Vec<&Descriptor> = match self.tag.as_deref() {
            None => self.index.manifests.iter().filter(|found| found.artifact_type.is_none()).collect(),
            Some(tag) => self.index.manifests.iter().filter(|found| is_called(found, tag)).collect(),
        };
        match candidates[..] {
            [] => match &self.tag {
                Some(tag) => Err(not_found(format!("no image {tag:?}; available: {}", self.names()))),
                None => Err(not_found("it contains no image".to_owned())),
            },
            [only] => Ok(only),
            _ => {
                let several = || not_found(format!("it contains several images, specify one: {}", self.names()));
                let ranked =
                    candidates.iter().filter_map(|found| Some((platform.distance(found.platform.as_ref()?)?, *found)));
                let mut ranked: Vec<_> = ranked.collect();
                ranked.sort_by_key(|(rank, _)| *rank);
                match ranked[..] {
                    [(_, only)] => Ok(only),
                    [(best, found), (next, _), ..] if best < next => Ok(found),
                    _ => Err(several()),
                }
            }
        }
    }

    fn names(&self) -> String {
        let name = |found: &Descriptor| match found.annotations.get(REF_NAME) {
            Some(name) => format!("{name:?}"),
            None => format!("@{}", found.digest),
        };
        let names: Vec<String> = self.index.manifests.iter().take(20).map(name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

pub(super) fn is_called(found: &Descriptor, tag: &str) -> bool {
    match tag.strip_prefix('@') {
        Some(digest) => found.digest.to_string() == digest,
        None => found.annotations.get(REF_NAME).is_some_and(|name| name == tag),
    }
}

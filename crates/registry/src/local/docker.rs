//! Reads the archives of `docker save` and `podman save --format docker-archive`.
//!
//! `manifest.json` names a config and layers by path, not by digest. So an OCI manifest is generated: a layer that is a plain tar
//! gets the diffID of the config (which the reader verifies), any other layer is hashed once.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::{Compression, Digest, Hasher, ImageConfig, Reference, Verified, limits, media_type};

use super::archive::Archive;
use super::{BlobPlace, LocalBlobs};
use crate::stats::Counters;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Opens the archive and generates the manifest of one image in it. Blocks on the local disk.
pub(crate) fn open(
    file: &Path,
    reference: Option<&Reference>,
    counters: Arc<Counters>,
) -> Result<(Verified<Bytes>, LocalBlobs), SourceError> {
    let name = format!("docker-archive:{}", file.display());
    let made = Archive::open(file).and_then(|archive| make_manifest(&archive, reference));
    let (manifest, places) = made.map_err(|error| {
        let fault = match error.kind() {
            io::ErrorKind::NotFound => Fault::NotFound,
            io::ErrorKind::PermissionDenied => Fault::Denied,
            _ => Fault::BadData,
        };
        SourceError::new(fault, error.to_string())
    })?;
    Ok((Verified::seal(manifest), LocalBlobs::places(places, name, counters)))
}

fn make_manifest(archive: &Archive, reference: Option<&Reference>) -> io::Result<(Bytes, HashMap<Digest, BlobPlace>)> {
    let saved = archive.read("manifest.json", limits::MANIFEST_BYTES)?;
    let saved: Vec<Saved> = serde_json::from_slice(&saved).map_err(|error| bad(format!("manifest.json: {error}")))?;
    let saved = select(&saved, reference)?;
    let config = Verified::seal(archive.read(&saved.config, limits::MANIFEST_BYTES)?);
    let config = ImageConfig::parse(config).map_err(|error| bad(format!("{}: {error}", saved.config)))?;
    let layers = saved.layers.as_deref().unwrap_or_default();
    if layers.len() != config.diff_ids.len() {
        let text = format!("manifest.json has {} layers, the config names {}", layers.len(), config.diff_ids.len());
        return Err(bad(text));
    }
    let mut places = HashMap::new();
    let place = archive.find(&saved.config).ok_or_else(|| bad("no config".to_owned()))?;
    places.insert(*config.bytes.digest(), place.clone());
    let mut descriptors = Vec::new();
    for (path, diff_id) in layers.iter().zip(&config.diff_ids) {
        let place = archive.find(path).ok_or_else(|| not_found(format!("layer {path} is missing")))?;
        let (digest, compression) = name_layer(place, diff_id)?;
        places.insert(digest, place.clone());
        descriptors.push(descriptor(compression.layer_media_type(), &digest, place.size));
    }
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": descriptor(media_type::OCI_CONFIG, config.bytes.digest(), place.size),
        "layers": descriptors,
    });
    Ok((Bytes::from(manifest.to_string()), places))
}

fn select<'a>(saved: &'a [Saved], reference: Option<&Reference>) -> io::Result<&'a Saved> {
    let names = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
    let all = || saved.iter().flat_map(names).take(20).collect::<Vec<_>>().join(", ");
    match (saved, reference) {
        (_, Some(wanted)) => {
            let is_wanted = |name: &String| name.parse::<Reference>().is_ok_and(|name| name == *wanted);
            let found = saved.iter().find(|image| names(image).iter().any(is_wanted));
            found.ok_or_else(|| not_found(format!("no image {wanted}; available: {}", all())))
        }
        ([only], None) => Ok(only),
        ([], None) => Err(not_found("it contains no image".to_owned())),
        (_, None) => Err(not_found(format!("it contains several images, specify one: {}", all()))),
    }
}

fn name_layer(place: &BlobPlace, diff_id: &Digest) -> io::Result<(Digest, Compression)> {
    let mut start = [0; 4];
    let read = place.file.read_at(&mut start, place.offset)?.min(usize::try_from(place.size).unwrap_or(4));
    let compression = Compression::detect(&start[..read]);
    let digest = match compression {
        Compression::None => *diff_id,
        _ => hash(place)?,
    };
    Ok((digest, compression))
}

fn hash(place: &BlobPlace) -> io::Result<Digest> {
    let mut hasher = Hasher::new();
    let mut piece = vec![0; 1 << 20];
    let (mut at, end) = (place.offset, place.offset + place.size);
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(piece.len());
        place.file.read_exact_at(&mut piece[..length], at)?;
        hasher.update(&piece[..length]);
        at += u64::try_from(length).unwrap_or(u64::MAX);
    }
    Ok(hasher.finish())
}

fn descriptor(media_type: &str, digest: &Digest, size: u64) -> serde_json::Value {
    serde_json::json!({"mediaType": media_type, "digest": digest, "size": size})
}

fn bad(message: String) -> io::Error {
    io::Error::other(message)
}

fn not_found(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, message)
}

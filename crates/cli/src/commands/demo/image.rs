//! The embedded image: an OCI archive (see fixtures/demo), read from memory.

use std::io::{self, Read};

use serde::Deserialize;
use tarpon_engine::Prepared;
use tarpon_engine::registry::Contents;
use tarpon_oci::{Digest, media_type};

/// The archive. It is embedded, so that an installed program needs no other file.
const ARCHIVE: &[u8] = include_bytes!("../../../../../fixtures/demo/image.tar");

/// Repository and tag of the image.
pub(super) const NAME: &str = "tarpon/demo:latest";

/// Path of the program in the image.
pub(super) const PROGRAM: &str = "bin/almanac";

/// Files of the image that are read to run its program, including the program.
pub(super) const FILES_READ: u64 = 4;

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    digest: Digest,
}

/// Content of the registry: each blob of the archive, and the image index under its name.
pub(super) fn contents() -> io::Result<Contents> {
    let mut contents = Contents::new();
    let mut blobs = Vec::new();
    let mut index = Vec::new();
    for entry in tar::Archive::new(ARCHIVE).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if path.ends_with("index.json") {
            index = bytes;
        } else if path.starts_with("blobs") {
            blobs.push(bytes);
        }
    }
    let content = |digest: &Digest| {
        let found = blobs.iter().find(|bytes| Digest::of(bytes) == *digest);
        found.cloned().ok_or_else(|| io::Error::other(format!("the archive has no {digest}")))
    };
    let named = parse(&index)?.manifests;
    for (tag, image) in NAME.split_once(':').into_iter().zip(&named) {
        let images = content(&image.digest)?;
        for manifest in parse(&images)?.manifests {
            contents.add_manifest(None, media_type::OCI_MANIFEST, content(&manifest.digest)?);
        }
        contents.add_manifest(Some(tag), media_type::OCI_INDEX, images);
    }
    for blob in blobs {
        contents.add_blob(blob);
    }
    Ok(contents)
}

fn parse(index: &[u8]) -> io::Result<Index> {
    serde_json::from_slice(index).map_err(io::Error::other)
}

/// The formats of the layers, lowest first.
pub(super) fn layer_names(prepared: &Prepared) -> Vec<String> {
    prepared.record.layers.iter().map(|layer| layer.format.to_string()).collect()
}

//! The directory that the store is mounted on: an empty store of the same format, so that Podman works even when nothing is mounted there.
//! Without it, every command of Podman fails.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tarpon_oci::Digest;

/// Directories of an empty store.
const DIRECTORIES: [&str; 4] = ["overlay", "overlay/l", "overlay-images", "overlay-layers"];
/// Files of an empty store, with their content.
const FILES: [(&str, &str); 4] = [
    ("overlay-images/images.json", "[]"),
    ("overlay-images/images.lock", ""),
    ("overlay-layers/layers.json", "[]"),
    ("overlay-layers/layers.lock", ""),
];

/// Creates an empty directory that all users may list, and its parents.
pub(super) fn make_empty(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Creates the empty store, or completes it. Nothing may be mounted on `folder`.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    make_empty(folder)?;
    DIRECTORIES.iter().try_for_each(|name| make_empty(&folder.join(name)))?;
    for (name, text) in FILES {
        let path = folder.join(name);
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
            Ok(mut file) => file.write_all(text.as_bytes())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The path of an image in listings of mounts.
pub(super) fn image_folder(folder: &Path, id: &Digest) -> PathBuf {
    folder.join("overlay-images").join(id.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_store_is_made_once_and_completed_where_it_is_not_whole() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("podman");
        make(&store).unwrap();
        assert_eq!(fs::read_to_string(store.join("overlay-images/images.json")).unwrap(), "[]");
        fs::remove_file(store.join("overlay-layers/layers.json")).unwrap();
        fs::write(store.join("overlay-images/images.lock"), "x").unwrap();
        make(&store).unwrap();
        assert_eq!(fs::read_to_string(store.join("overlay-layers/layers.json")).unwrap(), "[]");
        assert_eq!(fs::read_to_string(store.join("overlay-images/images.lock")).unwrap(), "x", "what is there stays");
    }
}

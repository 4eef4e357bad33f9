//! [`Origin`]: the image that an upper directory was written over, recorded in a file beside the directory.
//!
//! The server writes the file when it mounts with `--rw=DIR`, so that `commit DIR` finds the base even when nothing is mounted any more.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;
use tarpon_store::private;

/// The version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;
/// Suffix of the file, after the name of the directory.
const SUFFIX: &str = ".tarpon-base";
/// Maximum size of the file. It holds one image name.
const FILE_BYTES: u64 = 16 << 10;

/// The image below an upper directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    version: u32,
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Inode of the mounted directory: another one at the same path does not match.
    inode: u64,
    /// Birth time of that directory, in nanoseconds since 1970, where the file system supports it. Inode numbers are reused.
    born: Option<u128>,
}

impl Origin {
    /// Records that `upper` is written over this image.
    ///
    /// # Errors
    /// The directory is gone, or nothing can be written beside it.
    pub fn remember(upper: &Path, image: &str, manifest: Digest) -> io::Result<()> {
        let upper = upper.canonicalize()?;
        let (inode, born) = identity(&upper)?;
        let origin = Self { version: VERSION, image: image.to_owned(), manifest, inode, born };
        private::write(&beside(&upper)?, &serde_json::to_vec(&origin)?)
    }

    /// The record of `upper`, a path without symbolic links. None if there is none, or if it belongs to another directory.
    pub fn of(upper: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(beside(upper).ok()?).ok()?;
        let known = file.metadata().ok()?;
        let writers = [0, rustix::process::geteuid().as_raw()];
        if !known.is_file() || !writers.contains(&known.uid()) {
            return None;
        }
        file.take(FILE_BYTES).read_to_end(&mut text).ok()?;
        let origin: Self = serde_json::from_slice(&text).ok()?;
        let is_it = identity(upper).is_ok_and(|identity| identity == (origin.inode, origin.born));
        (origin.version == VERSION && is_it).then_some(origin)
    }
}

fn identity(directory: &Path) -> io::Result<(u64, Option<u128>)> {
    let known = directory.metadata()?;
    let born = known.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    Ok((known.ino(), born.map(|since| since.as_nanos())))
}

/// The path of the record, hidden like the work directory beside it.
fn beside(upper: &Path) -> io::Result<PathBuf> {
    let name = upper.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(SUFFIX);
    Ok(upper.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper(folder: &Path) -> PathBuf {
        let upper = folder.canonicalize().unwrap().join("changes");
        std::fs::create_dir(&upper).unwrap();
        upper
    }

    #[test]
    fn the_base_of_a_directory_is_remembered_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let upper = upper(folder.path());
        assert_eq!(Origin::of(&upper), None);
        for (image, manifest) in [("app:v1", Digest::of(b"one")), ("app:v2", Digest::of(b"two"))] {
            Origin::remember(&upper, image, manifest).unwrap();
            let known = Origin::of(&upper).unwrap();
            assert_eq!((&*known.image, known.manifest), (image, manifest));
        }
        assert_eq!(std::fs::read_dir(&upper).unwrap().count(), 0, "nothing of it is in the layer");
    }

    #[test]
    fn another_directory_at_the_same_path_has_no_base() {
        let folder = tempfile::tempdir().unwrap();
        let upper = upper(folder.path());
        Origin::remember(&upper, "app:v1", Digest::of(b"one")).unwrap();
        std::fs::rename(&upper, upper.with_file_name("old")).unwrap();
        std::fs::create_dir(&upper).unwrap();
        assert_eq!(Origin::of(&upper), None);
    }

    #[test]
    fn a_damaged_or_linked_file_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let upper = upper(folder.path());
        Origin::remember(&upper, "app:v1", Digest::of(b"one")).unwrap();
        let file = beside(&upper).unwrap();
        let text = std::fs::read(&file).unwrap();
        for end in 0..text.len() {
            std::fs::write(&file, &text[..end]).unwrap();
            assert_eq!(Origin::of(&upper), None, "{end}");
        }
        let elsewhere = folder.path().join("elsewhere");
        std::fs::write(&elsewhere, &text).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert_eq!(Origin::of(&upper), None);
    }
}

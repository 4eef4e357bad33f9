//! The members of a tar, found in one walk over its headers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path};
use std::sync::Arc;

use tarpon_oci::Compression;

use super::BlobPlace;

/// Members of an archive: more than four per layer.
const MEMBERS: usize = 16_384;
/// Links followed from a name: `docker save` writes one.
const LINKS: usize = 4;

/// Names and places of the members.
#[derive(Debug, Default)]
pub(super) struct Archive {
    files: HashMap<String, BlobPlace>,
    links: HashMap<String, String>,
}

/// Removes the message of the tar reader about a bad header: it quotes the header, and the file may contain anything.
fn without_content(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            io::Error::new(io::ErrorKind::InvalidData, "it is not a sound tar archive")
        }
        _ => error,
    }
}

impl Archive {
    /// Walks the tar at `path`. Blocks on the local disk; reads headers only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = Arc::new(File::open(path)?);
        let mut start = [0; 4];
        let read = file.read_at(&mut start, 0)?;
        match Compression::detect(&start[..read]) {
            Compression::None => {}
            packed => {
                return Err(io::Error::other(format!("the archive is compressed ({packed}): decompress it first")));
            }
        }
        let length = file.metadata()?.len();
        let mut archive = Self::default();
        let mut tar = tar::Archive::new(&*file);
        for entry in tar.entries_with_seek()? {
            let entry = entry.map_err(without_content)?;
            if archive.files.len() + archive.links.len() >= MEMBERS {
                return Err(io::Error::other(format!("more than {MEMBERS} members")));
            }
            let Some(name) = normal(&entry.path()?) else { continue };
            let kind = entry.header().entry_type();
            if kind.is_file() {
                let place = BlobPlace { file: file.clone(), offset: entry.raw_file_position(), size: entry.size() };
                if place.offset.checked_add(place.size).is_none_or(|end| end > length) {
                    return Err(io::Error::other(format!("{name:?} extends beyond the end of the archive")));
                }
                archive.files.insert(name, place);
            } else if kind.is_symlink() || kind.is_hard_link() {
                let Some(target) = entry.link_name()? else { continue };
                let from = match kind.is_symlink() {
                    true => Path::new(&name).parent().unwrap_or(Path::new("")).join(&target),
                    false => target.into_owned(),
                };
                if let Some(target) = normal(&from) {
                    archive.links.insert(name, target);
                }
            }
        }
        Ok(archive)
    }

    /// The file called `name`, through links.
    pub(super) fn find(&self, name: &str) -> Option<&BlobPlace> {
        let mut name = normal(Path::new(name))?;
        for _ in 0..=LINKS {
            if let Some(place) = self.files.get(&name) {
                return Some(place);
            }
            name.clone_from(self.links.get(&name)?);
        }
        None
    }

    /// All files.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &BlobPlace)> {
        self.files.iter().map(|(name, place)| (name.as_str(), place))
    }

    /// The content of the file called `name`, at most `limit` bytes.
    pub(super) fn read(&self, name: &str, limit: u64) -> io::Result<bytes::Bytes> {
        let place = self
            .find(name)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {name} in the archive")))?;
        if place.size > limit {
            return Err(io::Error::other(format!("{name} is larger than {limit} bytes")));
        }
        place.read_all()
    }
}

/// Reads the file at `path`, at most `limit` bytes.
pub(super) fn read_file(path: &Path, limit: u64) -> io::Result<bytes::Bytes> {
    let mut text = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > limit {
        return Err(io::Error::other(format!("{} is larger than {limit} bytes", path.display())));
    }
    Ok(text.into())
}

/// `./a/../b` → `b`. `None` for paths that leave the archive or are not UTF-8. Names are only used for look-ups.
fn normal(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

//! Symbolic links below the folder of a tier: no host makes them, and none is followed. They would let who may write there choose files
//! elsewhere that other hosts read, write or remove.
//!
//! A link that is made between the check and its use is still followed: the library opens files by their whole path.

use std::io;
use std::path::PathBuf;

use object_store::path::Path;
use object_store::{Error, Result};

/// How links are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// As if nothing was there.
    Missing,
    /// As an invalid path.
    Invalid,
}

/// Fails if `path`, or a folder between it and `root`, is a symbolic link. What does not exist is none.
///
/// # Errors
/// It is a link, or cannot be examined.
pub(crate) fn refuse(root: &std::path::Path, path: &Path, links: Links) -> Result<()> {
    match first_link(root, path) {
        Ok(None) => Ok(()),
        Ok(Some(link)) => Err(refused(path, link, links)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::PermissionDenied { path: path.to_string(), source: error.into() })
        }
        Err(error) => Err(Error::Generic { store: "folder", source: error.into() }),
    }
}

fn first_link(root: &std::path::Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let mut place = root.to_owned();
    for part in path.parts() {
        place.push(part.as_ref());
        match std::fs::symlink_metadata(&place) {
            Ok(metadata) if metadata.is_symlink() => return Ok(Some(place)),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn refused(path: &Path, link: PathBuf, links: Links) -> Error {
    let why = io::Error::other(format!("{} is a symbolic link, which no tier has: remove it", link.display()));
    match links {
        Links::Missing => Error::NotFound { path: path.to_string(), source: why.into() },
        Links::Invalid => {
            Error::InvalidPath { source: object_store::path::Error::Canonicalize { path: link, source: why } }
        }
    }
}

//! [`Leftovers`]: files of copies that were never finished, in the folder of a tier.
//!
//! A host that loses power during a copy leaves what it has written as `NAME#NUMBER`. No listing shows these files. Buckets have rules of
//! their own that remove parts of objects.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::contents::SKEW;
use crate::error::{Error, Result};
use crate::links::{Links, refuse};
use crate::names::Name;
use crate::tier::Tier;

/// Files of copies that were never finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tier {
    /// Removes files of copies that were not written for `unused`, and empty folders. Returns what was removed, or what would be. Nothing if the tier is in a
    /// bucket.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub async fn collect_leftovers(&self, unused: Duration, is_trial: bool) -> Result<Leftovers> {
        let step = "remove unfinished copies from the tier";
        let Some(folder) = self.location().folder() else { return Ok(Leftovers::default()) };
        let (folder, layers) = (folder.to_owned(), self.layers_path());
        let work = move || match refuse(&folder, &layers, Links::Missing) {
            Ok(()) => collect(&folder.join(layers.as_ref()), unused.saturating_add(SKEW), is_trial),
            Err(object_store::Error::NotFound { .. }) => Ok(Leftovers::default()),
            Err(error) => Err(error.into()),
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|error| Error::new(step, error.to_string()))?;
        done.map_err(|error| Error::of_file(step, &error))
    }
}

fn collect(layers: &Path, unused: Duration, is_trial: bool) -> io::Result<Leftovers> {
    let mut leftovers = Leftovers::default();
    for layer in entries(layers)? {
        let layer = layer?;
        // Not through symbolic links: these folders are the hosts' own.
        if !layer.file_type()?.is_dir() {
            continue;
        }
        for file in entries(&layer.path())? {
            let file = file?;
            let Some(metadata) = file.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
            if !is_unfinished(&file.file_name()) || age <= unused {
                continue;
            }
            if !is_trial {
                std::fs::remove_file(file.path())?;
            }
            leftovers.files += 1;
            leftovers.bytes = leftovers.bytes.saturating_add(metadata.len());
        }
        if !is_trial {
            // Fails unless the folder is empty, as it is after the removal of its layer.
            let _removed = std::fs::remove_dir(layer.path());
        }
    }
    Ok(leftovers)
}

fn entries(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<std::fs::DirEntry>>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries?),
    };
    Ok(entries.into_iter().flatten())
}

/// As the library names them: `blob#1`.
fn is_unfinished(name: &OsStr) -> bool {
    let Some((name, number)) = name.to_str().and_then(|name| name.split_once('#')) else { return false };
    Name::parse(name).is_some() && !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
}

//! [`Listing`]: the files below the folder of a tier. The library's own listing follows symbolic links.

use std::collections::VecDeque;
use std::fs::{DirEntry, ReadDir};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use object_store::path::Path;
use object_store::{Error, ObjectMeta, Result};
use tokio::runtime::Handle;

use crate::links::{Links, refuse};

/// Files that are listed at a time.
const BATCH: usize = 256;
/// Entries of folders that are read at a time, also if no file is among them: less than a second at a slow server.
const ENTRIES: usize = 1024;
/// Deepest folder below the first one: `layers/HEX`.
const DEPTH: usize = 2;

/// The files that were not returned.
pub(crate) struct Listing {
    root: PathBuf,
    /// The folder that is listed, until it was opened.
    first: Option<Path>,
    open: Vec<(Path, ReadDir)>,
    found: VecDeque<ObjectMeta>,
}

impl Listing {
    pub(crate) fn new(root: PathBuf, folder: Path) -> Self {
        Self { root, first: Some(folder), open: Vec::new(), found: VecDeque::new() }
    }

    /// The next file. System calls run on `threads`.
    pub(crate) async fn next(mut self, threads: Handle) -> Result<Option<(ObjectMeta, Self)>> {
        loop {
            if let Some(object) = self.found.pop_front() {
                return Ok(Some((object, self)));
            }
            if self.first.is_none() && self.open.is_empty() {
                return Ok(None);
            }
            self = threads.spawn_blocking(move || self.read().map(|()| self)).await??;
        }
    }

    fn read(&mut self) -> Result<()> {
        if let Some(first) = self.first.take() {
            match refuse(&self.root, &first, Links::Missing) {
                Ok(()) => self.enter(first)?,
                Err(Error::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        for _ in 0..ENTRIES {
            let Some((folder, entries)) = self.open.last_mut() else { break };
            let Some(entry) = entries.next() else {
                self.open.pop();
                continue;
            };
            let folder = folder.clone();
            self.add(&folder, &entry.map_err(failed)?)?;
            if self.found.len() >= BATCH {
                break;
            }
        }
        Ok(())
    }

    fn enter(&mut self, folder: Path) -> Result<()> {
        match std::fs::read_dir(self.root.join(folder.as_ref())) {
            Ok(entries) => self.open.push((folder, entries)),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    /// Neither links nor pipes. Another host may have removed it meanwhile.
    fn add(&mut self, folder: &Path, entry: &DirEntry) -> Result<()> {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_plain(name)) else { return Ok(()) };
        let location = folder.clone().join(name);
        // Of the link, if it is one.
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        if metadata.is_dir() {
            return if self.open.len() < DEPTH { self.enter(location) } else { Ok(()) };
        }
        if metadata.is_file() {
            let last_modified = metadata.modified().map_err(failed)?.into();
            let e_tag = Some(format!("{:x}-{:x}-{:x}", metadata.ino(), metadata.mtime_nsec(), metadata.len()));
            self.found.push_back(ObjectMeta { location, last_modified, size: metadata.len(), e_tag, version: None });
        }
        Ok(())
    }
}

/// All names in a tier are. Not `blob#1`, which is being written.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn failed(error: io::Error) -> Error {
    Error::Generic { store: "folder", source: error.into() }
}

//! The effect of a power cut on a folder: content that was not synced is lost, and names of one folder may be.
//!
//! A file system may write names in any order between two syncs, but those of one folder in the order of their changes.
//! So the names of one folder can be lost while those of all others are kept.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::seeds::Random;

/// What a power cut leaves of a file that was written since its last sync. Its name is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Its length: the content reads as zeros.
    Zeros,
    /// Its first half; the rest reads as zeros.
    Half,
    /// An empty file.
    Nothing,
    /// All of it, or one of the others: each file by chance.
    Some(u64),
}

/// What a power cut would lose.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// Inodes that were written since their last sync.
    written: HashSet<u64>,
    /// The folder whose names are recorded.
    folder: Option<PathBuf>,
    /// How to undo the changes of its names since its last sync, in their order.
    names: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    /// The name was created.
    Remove(PathBuf),
    /// The file was renamed.
    Rename { from: PathBuf, to: PathBuf },
    /// The name was removed, or replaced.
    Restore { path: PathBuf, content: Vec<u8>, mode: u32, modified: SystemTime, is_written: bool },
}

impl Unsynced {
    /// Records changes of the names of `folder` from now on.
    pub(super) fn watch(&mut self, folder: &Path) {
        self.folder = Some(folder.to_owned());
    }

    pub(super) fn wrote(&mut self, inode: u64) {
        self.written.insert(inode);
    }

    /// A file or a folder is synced: its content, and the names of its folder or its own.
    pub(super) fn synced(&mut self, inode: u64, path: &Path) {
        self.written.remove(&inode);
        let folder = self.folder.as_deref();
        if folder.is_some_and(|folder| path == folder || path.parent() == Some(folder)) {
            self.names.clear();
        }
    }

    pub(super) fn synced_all(&mut self) {
        self.written.clear();
        self.names.clear();
    }

    fn is_watched(&self, path: &Path) -> bool {
        self.folder.is_some() && path.parent() == self.folder.as_deref()
    }

    pub(super) fn created(&mut self, path: &Path) {
        if self.is_watched(path) {
            self.names.push(Undo::Remove(path.to_owned()));
        }
    }

    /// Must be called before the change. Files that leave the folder or come from another one stay where they are.
    pub(super) fn renaming(&mut self, from: &Path, to: &Path) {
        if self.is_watched(from) && self.is_watched(to) {
            self.removing(to);
            self.names.push(Undo::Rename { from: from.to_owned(), to: to.to_owned() });
        }
    }

    /// Must be called before the change.
    pub(super) fn removing(&mut self, path: &Path) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if !self.is_watched(path) || metadata.is_dir() {
            return;
        }
        if let (Ok(content), Ok(modified)) = (fs::read(path), metadata.modified()) {
            let is_written = self.written.contains(&metadata.ino());
            let mode = metadata.permissions().mode();
            self.names.push(Undo::Restore { path: path.to_owned(), content, mode, modified, is_written });
        }
    }

    /// Gives the watched folder the names that it had at its last sync.
    pub(super) fn lose_names(&mut self) -> io::Result<()> {
        while let Some(undo) = self.names.pop() {
            match undo {
                Undo::Remove(path) if path.is_dir() => fs::remove_dir_all(path)?,
                Undo::Remove(path) => ignore_missing(fs::remove_file(path))?,
                Undo::Rename { from, to } => ignore_missing(fs::rename(to, from))?,
                Undo::Restore { path, content, mode, modified, is_written } => {
                    fs::write(&path, content)?;
                    let file = fs::File::open(&path)?;
                    file.set_modified(modified)?;
                    file.set_permissions(fs::Permissions::from_mode(mode))?;
                    if is_written {
                        self.written.insert(file.metadata()?.ino());
                    }
                }
            }
        }
        Ok(())
    }

    /// Loses the content of all files below `folder` that were written since their last sync.
    pub(super) fn lose_content(&self, folder: &Path, left: Left) -> io::Result<()> {
        let mut random = Random(if let Left::Some(seed) = left { seed } else { 0 });
        let mut pending = vec![folder.to_owned()];
        while let Some(path) = pending.pop() {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                let mut below: Vec<_> = fs::read_dir(&path)?.flatten().map(|entry| entry.path()).collect();
                below.sort();
                pending.extend(below);
            } else if self.written.contains(&metadata.ino()) {
                let left = match (left, random.below(4)) {
                    (Left::Some(_), 0) => continue,
                    (Left::Some(_), 1) => Left::Zeros,
                    (Left::Some(_), 2) => Left::Half,
                    (Left::Some(_), _) => Left::Nothing,
                    (left, _) => left,
                };
                lose(&path, &metadata, left)?;
            }
        }
        Ok(())
    }
}

/// Undone changes may build on others that tarpon has undone itself.
fn ignore_missing(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces the content as if it had never reached the disk. The modification time stays.
fn lose(path: &Path, metadata: &fs::Metadata, left: Left) -> io::Result<()> {
    let (modified, permissions) = (metadata.modified()?, metadata.permissions());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let file = fs::OpenOptions::new().write(true).open(path)?;
    file.set_len(if left == Left::Half { metadata.len() / 2 } else { 0 })?;
    if left != Left::Nothing {
        // The length is metadata and was kept; the data reads as zeros.
        file.set_len(metadata.len())?;
    }
    file.set_modified(modified)?;
    fs::set_permissions(path, permissions)
}

//! Helpers over a [`Storage`]: whole reads and writes, atomic replacement of a file, recursive removal of a folder.
//!
//! Only this module repeats interrupted calls and continues short ones.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::process::{Pid, test_kill_process};
use tarpon_oci::{Hasher, limits};

use crate::StoreError;
use crate::storage::{Access, Storage};

/// Permissions of every folder: objects of an image may be setuid programs with known flaws, so other users must not
/// reach them by their names here.
pub(crate) const DIR_MODE: u32 = 0o700;
/// Permissions of everything but objects.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Permissions of an object: immutable.
pub(crate) const OBJECT_MODE: u32 = 0o444;
/// Prefix of files under construction.
const TEMPORARY: &str = ".new-";
/// Bytes per read when a file is hashed or copied.
pub(crate) const BLOCK: usize = 256 << 10;

/// Wraps an I/O error. The message is built only on an error: successful calls are on the path of each open.
pub(crate) fn io_error(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| StoreError::Io { doing: format!("{doing} {}", path.display()), error }
}

pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY)
}

/// The name of a file or folder under construction. As long as this lives, a sweep of the same process spares it.
#[derive(Debug)]
pub(crate) struct TemporaryName(String);

static IN_THE_MAKING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl TemporaryName {
    pub(crate) fn new() -> Self {
        let name = format!("{TEMPORARY}{}", unique_name());
        IN_THE_MAKING.lock().insert(name.clone());
        Self(name)
    }

    pub(crate) fn in_folder(&self, folder: &Path) -> PathBuf {
        folder.join(&self.0)
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        IN_THE_MAKING.lock().remove(&self.0);
    }
}

/// Whether `name` is temporary and its creator is dead (or has dropped it).
pub(crate) fn is_abandoned(name: &str) -> bool {
    let maker = name.strip_prefix(TEMPORARY).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    match maker {
        None => false,
        Some(pid) if pid == std::process::id() => !IN_THE_MAKING.lock().contains(name),
        // Not through `/proc`, which may be missing.
        Some(pid) => {
            Pid::from_raw(pid.cast_signed()).is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
        }
    }
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_all_at(storage: &dyn Storage, file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match storage.write_at(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills as much of `buffer` as the file contains from `offset` on.
pub(crate) fn read_full_at(storage: &dyn Storage, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match storage.read_at(file, rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Feeds the whole file to `hasher`; returns its length.
pub(crate) fn hash_file(storage: &dyn Storage, file: &File, hasher: &mut Hasher) -> io::Result<u64> {
    let mut buffer = vec![0; BLOCK];
    let mut offset = 0;
    loop {
        let count = read_full_at(storage, file, &mut buffer, offset)?;
        hasher.update(buffer.get(..count).unwrap_or_default());
        offset += count as u64;
        if count < buffer.len() {
            return Ok(offset);
        }
    }
}

/// Whether two files have the same content.
pub(crate) fn are_same(storage: &dyn Storage, one: &File, other: &File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut offset = 0;
    loop {
        let count = read_full_at(storage, one, &mut left, offset)?;
        if read_full_at(storage, other, &mut right, offset)? != count || left.get(..count) != right.get(..count) {
            return Ok(false);
        }
        if count < BLOCK {
            return Ok(true);
        }
        offset += count as u64;
    }
}

/// Reads the whole file; `None` if it does not exist. More than `limit` bytes are an error.
pub(crate) fn read(storage: &dyn Storage, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    match storage.open(path, Access::Read).and_then(|file| read_open(storage, &file, limit)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("reading", path)(error)),
    }
}

/// Reads the whole of an open file.
pub(crate) fn read_open(storage: &dyn Storage, file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let start = bytes.len();
        bytes.resize(start + (64 << 10), 0);
        let count = read_full_at(storage, file, bytes.get_mut(start..).unwrap_or_default(), start as u64)?;
        bytes.truncate(start + count);
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes")));
        }
        if count < 64 << 10 {
            return Ok(bytes);
        }
    }
}

/// Writes `bytes` to `folder/name` atomically, replacing any existing file.
pub(crate) fn replace(storage: &dyn Storage, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary_name = TemporaryName::new();
    let temporary = temporary_name.in_folder(folder);
    let target = folder.join(name);
    let outcome = storage
        .open(&temporary, Access::CreateNew(FILE_MODE))
        .and_then(|file| write_all_at(storage, &file, bytes, 0))
        .and_then(|()| storage.rename(&temporary, &target));
    outcome.map_err(|error| {
        let _ = storage.unlink(&temporary);
        io_error("writing", &target)(error)
    })
}

/// Creates a folder unless it exists.
pub(crate) fn create_dir(storage: &dyn Storage, path: &Path, mode: u32) -> Result<(), StoreError> {
    match storage.create_dir(path, mode) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io_error("creating", path)(error)),
        _ => Ok(()),
    }
}

/// Creates `path` with `mode`, and its parents with the usual permissions.
pub(crate) fn create_dir_all(storage: &dyn Storage, path: &Path, mode: u32) -> Result<(), StoreError> {
    match storage.create_dir(path, mode) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            create_dir_all(storage, parent.ok_or_else(|| io_error("creating", path)(error))?, 0o755)?;
            create_dir(storage, path, mode)
        }
        Err(error) => Err(io_error("creating", path)(error)),
    }
}

/// The names in a folder; none if it does not exist or is no folder.
pub(crate) fn list(storage: &dyn Storage, path: &Path) -> Result<Vec<OsString>, StoreError> {
    match storage.list(path) {
        Ok(names) => Ok(names),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(io_error("listing", path)(error)),
    }
}

/// The names of the records in a folder: without files under construction, which may be complete but are no records.
pub(crate) fn list_records(storage: &dyn Storage, path: &Path) -> Result<Vec<OsString>, StoreError> {
    let mut names = list(storage, path)?;
    names.retain(|name| !name.to_str().is_some_and(is_temporary));
    Ok(names)
}

/// Removes a name, if it exists.
pub(crate) fn unlink(storage: &dyn Storage, path: &Path) -> Result<(), StoreError> {
    match storage.unlink(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a file or a folder with its content, if it exists.
pub(crate) fn remove_all(storage: &dyn Storage, path: &Path) -> Result<(), StoreError> {
    let mut pending = vec![(path.to_owned(), false)];
    while let Some((path, emptied)) = pending.pop() {
        let is_dir = match storage.metadata(&path) {
            Ok(metadata) => metadata.is_dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_error("examining", &path)(error)),
        };
        if !is_dir {
            unlink(storage, &path)?;
        } else if emptied {
            storage.remove_dir(&path).map_err(io_error("removing", &path))?;
        } else {
            let children: Vec<PathBuf> = list(storage, &path)?.iter().map(|name| path.join(name)).collect();
            pending.push((path, true));
            pending.extend(children.into_iter().map(|child| (child, false)));
        }
    }
    Ok(())
}

/// A file name that no other process uses on this host.
pub(crate) fn unique_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("{}-{time:x}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Reads a small file of the store whole. One that is too large is not ours or damaged, and treated as absent.
pub(crate) fn read_record(storage: &dyn Storage, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    read_at_most(storage, path, limits::STORE_RECORD_BYTES)
}

/// Reads a file whole; `None` if it does not exist or is larger than `limit`.
pub(crate) fn read_at_most(storage: &dyn Storage, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    match read(storage, path, limit) {
        Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
        outcome => outcome,
    }
}

/// Opens for reading; `None` if it does not exist.
pub(crate) fn open_existing(storage: &dyn Storage, path: &Path) -> Result<Option<File>, StoreError> {
    match storage.open(path, Access::Read) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("opening", path)(error)),
    }
}

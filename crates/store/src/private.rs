//! Files and directories that only their owner may read, written atomically.

use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Writes `bytes` to `path` for the owner alone, replacing any previous file.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = temporary(path, bytes)?;
    // Otherwise a crash of the machine may leave the name with an empty file.
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// As [`write`], for a file that is worthless after a crash of the machine. It is not synced: a disk that syncs files of many containers
/// at once delays their starts.
pub fn write_volatile(path: &Path, bytes: &[u8]) -> io::Result<()> {
    temporary(path, bytes)?.persist(path).map(drop).map_err(|error| error.error)
}

/// A file next to `path`, which only the owner may read.
fn temporary(path: &Path, bytes: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Creates a directory for the owner alone.
pub fn create_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

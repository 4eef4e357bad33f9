//! The log of a store's server, `server.log`, which is rotated before it grows too large. The previous one is kept as `server.log.1`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use tarpon_store::Store;

/// Size at which the log is rotated. Both files together stay below 10 MiB.
pub const SERVER_LOG_BYTES: u64 = 4 << 20;

/// Path of the log of the store's server.
pub fn path(store: &Store) -> PathBuf {
    store.server_folder().join("server.log")
}

/// Opens it for a server that is being started.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > SERVER_LOG_BYTES) {
        rotate(path)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// Copies the log beside itself and empties it. The file stays the same one: processes that have it open for appending continue at its
/// start.
///
/// # Errors
/// It cannot be emptied. A failed copy is no error: a full disk must not make the log grow.
pub fn rotate(path: &Path) -> io::Result<()> {
    let before = path.with_extension("log.1");
    let kept = before.with_extension("1.new");
    if let Err(error) = fs::copy(path, &kept).and_then(|_| fs::rename(&kept, &before)) {
        let _never_made = fs::remove_file(&kept);
        tracing::debug!(%error, "what was in the log is not kept");
    }
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_rotated_log_is_the_same_file_for_its_writers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let mut log = open(&path).unwrap();
        for text in ["first", "second", "third"] {
            log.write_all(text.as_bytes()).unwrap();
            rotate(&path).unwrap();
            assert_eq!(fs::read_to_string(path.with_extension("log.1")).unwrap(), text);
        }
        log.write_all(b"last").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "last");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

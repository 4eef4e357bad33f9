//! [`EditLock`]: one writer of an auth file at a time. A change replaces the whole file, so without it one of two logins at the same time
//! would be lost.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

/// How long to wait for another writer. Writing takes milliseconds, but the holder may have been stopped.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval for the lock that another writer has.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The lock on a file beside the auth file, which is itself replaced. The kernel releases it when its holder ends.
#[derive(Debug)]
pub(super) struct EditLock {
    /// `None`: no file can be made there, so the auth file cannot be replaced either.
    _held: Option<File>,
}

impl EditLock {
    /// Takes the lock for the auth file, which is no symbolic link.
    ///
    /// # Errors
    /// The file of the lock cannot be used, or another process has held the lock for long.
    pub(super) async fn take(file: &Path) -> io::Result<Self> {
        let Some(opened) = open(&name(file))? else { return Ok(Self { _held: None }) };
        let until = Instant::now() + TIMEOUT;
        while !is_taken(&opened)? {
            if Instant::now() >= until {
                return Err(io::Error::other("another process is writing it"));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(Self { _held: Some(opened) })
    }
}

/// `auth.json.lock` beside the file.
fn name(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".lock");
    name.into()
}

fn open(path: &Path) -> io::Result<Option<File>> {
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
    let opened = File::options().create(true).truncate(false).write(true).mode(0o600).custom_flags(no_link).open(path);
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_unwritable(&error) => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// Whether no file can be written there, at least not by this user.
fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem)
}

fn is_taken(file: &File) -> io::Result<bool> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            // Some network file systems have no locks: logins at the same time may lose each other there.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_has_one_holder_and_the_wait_for_it_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.json");
        let held = EditLock::take(&file).await.unwrap();
        let mode = std::fs::metadata(folder.path().join("auth.json.lock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = EditLock::take(&file).await.unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(held);
        assert!(EditLock::take(&file).await.is_ok());
    }

    #[tokio::test]
    async fn a_folder_in_which_nothing_can_be_made_needs_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let held = EditLock::take(&folder.path().join("missing/auth.json")).await.unwrap();
        assert!(held._held.is_none());
    }
}

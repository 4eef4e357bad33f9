//! Locks on files: the kernel releases one when its holder ends, however that ends. Waits for one are bounded, because a holder may have
//! been stopped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::file_lock::FileLock;

/// Poll interval for a lock that another holder has.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Takes the lock of an open file. `None`: another holder has it.
pub fn try_lock(file: impl Into<File>) -> io::Result<Option<FileLock>> {
    lock_within(file, Duration::ZERO)
}

/// As [`try_lock`], as a shared lock.
pub fn try_share(file: impl Into<File>) -> io::Result<Option<FileLock>> {
    let file = file.into();
    Ok(take(&file, FlockOperation::NonBlockingLockShared)?.then(|| FileLock::of(file)))
}

/// As [`try_lock`], once no other holder has it. `None`: one has had it for all of `timeout`.
pub fn lock_within(file: impl Into<File>, timeout: Duration) -> io::Result<Option<FileLock>> {
    let file = file.into();
    Ok(take_within(&file, timeout)?.then(|| FileLock::of(file)))
}

/// Takes the lock of a file again that may have been unlocked through a copy of the descriptor. `false`: another holder has had it for all
/// of `timeout`.
pub fn take_within(file: &File, timeout: Duration) -> io::Result<bool> {
    let began = Instant::now();
    while !take(file, FlockOperation::NonBlockingLockExclusive)? {
        if began.elapsed() >= timeout {
            return Ok(false);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(true)
}

fn take(file: &File, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a file that exists only to be locked; creates it if missing.
pub fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// The lock of the file at `path`, held until it is dropped.
///
/// # Errors
/// Also if another holder has had it for all of `timeout`.
pub fn hold(path: &Path, timeout: Duration) -> io::Result<FileLock> {
    let lock = lock_within(open(path)?, timeout)?;
    lock.ok_or_else(|| io::Error::other("timed out waiting for a lock held by another tarpon process"))
}

/// Whether the open file still has a name. The previous holder of its lock may have removed it: then the lock protects nothing.
pub fn has_name(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstat(file)?.st_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_the_wait_for_it_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
        let first = try_lock(first).unwrap().unwrap();
        assert!(lock_within(second, Duration::ZERO).unwrap().is_none());
        let waiting = std::thread::spawn(move || hold(&path, Duration::from_secs(60)).unwrap());
        drop(first);
        drop(waiting.join().unwrap());
    }

    #[test]
    fn a_lock_of_a_file_that_was_removed_is_known_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = open(&path).unwrap();
        assert!(has_name(&file).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!has_name(&file).unwrap());
    }
}

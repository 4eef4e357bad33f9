//! Locks on files: the kernel lets go of one when its holder ends, however that ends. Whoever waits for one does so for a while and not
//! for ever, because a holder may have been stopped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How often a lock is tried that somebody has.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// Takes the lock of an open file, unless somebody has it. It is held until the last copy of the descriptor is closed.
pub(crate) fn try_lock(file: impl AsFd) -> io::Result<bool> {
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As [`try_lock`], once nobody else has it. `false`: somebody has had it for all of `patience`.
pub(crate) fn lock_within(file: impl AsFd, patience: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        if try_lock(&file)? {
            return Ok(true);
        }
        if began.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

/// Opens a file that is there to be locked, and for nothing else; makes it if it is not there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// The lock of the file at `path`, held until it is dropped.
///
/// # Errors
/// Also if somebody else has had it for all of `patience`.
pub(crate) fn hold(path: &Path, patience: Duration) -> io::Result<File> {
    let file = open(path)?;
    if lock_within(&file, patience)? { Ok(file) } else { Err(io::Error::other("another tarpon is at it for too long")) }
}

/// Whether what is open has a name still. Whoever had the lock of it before may have removed it: then the lock is one of nothing.
pub(crate) fn has_name(file: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstat(file)?.st_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_who_is_waited_for_within_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
        assert!(try_lock(&first).unwrap());
        assert!(!lock_within(&second, Duration::ZERO).unwrap());
        let waiting = std::thread::spawn(move || lock_within(&second, Duration::from_secs(60)).unwrap());
        drop(first);
        assert!(waiting.join().unwrap());
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

//! Processes that wait for the end of a container, and the file in its directory that they lock.
//!
//! A container that is removed when it ends takes its record along. So a waiter holds a lock in the container's directory, and a removal
//! first gives waiters some time to read the record.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tarpon_store::FileLock;
use tarpon_store::flock::{lock_within, open, try_share};

/// How long a removal waits for waiters: many times their longest check interval.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often the lock is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Marks the container in this directory as waited for. While this lives its directory stays, within [`TIMEOUT`]. The process that removes
/// the container holds the lock for a moment. After that there is nothing to wait for, which the next check shows.
pub(super) fn waiter(folder: &Path) -> io::Result<Option<FileLock>> {
    let began = Instant::now();
    loop {
        match try_share(open(&mark(folder))?)? {
            None if began.elapsed() < TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            held => return Ok(held),
        }
    }
}

pub(super) fn mark(folder: &Path) -> PathBuf {
    folder.join("waiters")
}

/// Gives waiters time to see how a container ended, before its directory is removed.
pub(super) fn let_waiters_look(folder: &Path) {
    // The file does not exist if no process has ever waited.
    if let Ok(file) = File::open(mark(folder)) {
        let _they_take_too_long = lock_within(file, TIMEOUT);
    }
}

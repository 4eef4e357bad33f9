//! Taking the locks of the store's files. Every wait is bounded: a holder may be stopped, or its disk may hang.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::StoreError;
use crate::clock::Clock;
use crate::file_lock::FileLock;
use crate::files::{FILE_MODE, io_error};
use crate::storage::{Access, Storage};

/// First interval between two attempts on a held lock: most are held for microseconds.
const FIRST_POLL: Duration = Duration::from_micros(50);
/// Longest interval between two attempts: short for a user, long for a processor.
const LAST_POLL: Duration = Duration::from_millis(5);

/// Longest wait for a lock that covers one small file operation. A disk busy with writes delays it by about as much.
pub(crate) const SHORT_WAIT: Duration = Duration::from_secs(1);

/// Longest wait of a change of one image's record: a mount waits for it, and its client waits no longer than a minute.
pub(crate) const RECORD_WAIT: Duration = Duration::from_secs(20);
/// Longest wait of a command that walks the whole store for another such command: two walks over a large store whose
/// folders are not cached in memory.
pub(crate) const COMMAND_WAIT: Duration = Duration::from_secs(60);

/// Waits for locks by a clock.
#[derive(Clone, Copy)]
pub(crate) struct Locks<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) clock: &'a dyn Clock,
}

impl Locks<'_> {
    /// Takes the exclusive lock at `path`. [`StoreError::Busy`] if another holder keeps it for all of `timeout`.
    /// `doing`: the purpose.
    pub(crate) fn lock(self, path: &Path, timeout: Duration, doing: &str) -> Result<FileLock, StoreError> {
        let busy = || StoreError::Busy { doing: doing.to_owned(), lock: path.to_owned(), waited: timeout };
        self.lock_within(path, timeout)?.ok_or_else(busy)
    }

    /// As [`Locks::lock`]; `None` if another holder keeps it for all of `timeout`.
    pub(crate) fn lock_within(self, path: &Path, timeout: Duration) -> Result<Option<FileLock>, StoreError> {
        let open = || self.storage.open(path, Access::OpenOrCreate(FILE_MODE));
        open().and_then(|file| self.hold_within(file, true, timeout)).map_err(io_error("locking", path))
    }

    /// Locks `file`. `None` if another holder keeps it for all of `timeout`.
    pub(crate) fn hold_within(self, file: File, exclusive: bool, timeout: Duration) -> io::Result<Option<FileLock>> {
        let began = self.clock.steady();
        let mut pause = FIRST_POLL;
        while !self.storage.lock(&file, exclusive)? {
            if self.clock.steady().saturating_sub(began) >= timeout {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = LAST_POLL.min(pause * 2);
        }
        Ok(Some(FileLock::of(file)))
    }
}

/// Locks `file` exclusively without waiting; `None` if another holder has it.
pub(crate) fn hold(storage: &dyn Storage, file: File) -> io::Result<Option<FileLock>> {
    Ok(storage.lock(&file, true)?.then(|| FileLock::of(file)))
}

/// Takes the lock at `path` without waiting; `None` if another holder has it.
pub(crate) fn try_lock(storage: &dyn Storage, path: &Path) -> Result<Option<FileLock>, StoreError> {
    let open = || hold(storage, storage.open(path, Access::OpenOrCreate(FILE_MODE))?);
    open().map_err(io_error("locking", path))
}

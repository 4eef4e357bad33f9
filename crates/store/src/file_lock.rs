//! [`FileLock`]: a file locked with flock(2) and unlocked before it is closed.
//!
//! Closing alone is not enough. When another thread starts a program, the new process has copies of all descriptors until
//! its `exec` closes them, and such a copy keeps the lock. An unlock applies to all copies.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FlockOperation;

/// A locked file, exclusive or shared. Dropping it unlocks the file, even if other processes have copies of its descriptor.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    unlocks: bool,
}

impl FileLock {
    /// Wraps a file whose lock was just taken.
    pub fn of(file: File) -> Self {
        Self { file, unlocks: true }
    }

    /// Leaves the lock to the process that inherited a copy of the descriptor: dropping this one only closes it.
    pub fn leave_to_heir(&mut self) {
        self.unlocks = false;
    }

    /// Unlocks the file, which stays open.
    pub(crate) fn unlock(&mut self) {
        if std::mem::take(&mut self.unlocks)
            && let Err(error) = rustix::fs::flock(&self.file, FlockOperation::Unlock)
        {
            tracing::debug!(%error, "a lock is released only when its last descriptor is closed");
        }
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsFd for FileLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &std::path::Path) -> Option<FileLock> {
        let file = File::options().create(true).truncate(false).write(true).open(folder.join("lock")).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| FileLock::of(file))
    }

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_the_lock_unless_it_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock(folder.path()).unwrap();
        let copy = held.try_clone().unwrap();
        assert!(lock(folder.path()).is_none());
        drop(held);
        let mut held = lock(folder.path()).expect("the copy does not keep it");
        let heir = held.try_clone().unwrap();
        held.leave_to_heir();
        drop(held);
        assert!(lock(folder.path()).is_none(), "the heir holds it");
        drop(heir);
        drop(lock(folder.path()).expect("the heir has closed it"));
        drop(copy);
    }
}

//! A separate file system for the stores of the end-to-end tests.
//!
//! The tests create and delete hundreds of thousands of small files, and wait until each is on the disk. If the disk is slow
//! to flush, or its file system slow to create files after many were deleted (ext4 without a journal searches all
//! that were deleted in the last minutes: 40 % of the processor time of such a test), that dominates their time.
//! Its content need not survive a power failure, so a flush costs nothing here.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use tarpon_harness::{paths, process};

/// The folder for the files of the end-to-end tests: `tarpon_tests::real::scratch`.
const FOLDER: &str = "target/e2e";

/// Maximum size, if the disk below has as much free space: a loop device reports a full disk as a broken one. The file is sparse:
/// it takes only the space of its content.
const BYTES: u64 = 24 << 30;

/// Space that the tests may need at once: 2.5 GB on two processors, and more with more programs beside each other.
const NEEDED: u64 = 4 << 30;
/// No barriers: a flush need not reach the disk. `discard` frees the space of deleted files at once.
const OPTIONS: &str = "loop,nobarrier,data=writeback,commit=300,noatime,discard";

/// The mounted file system. Dropping it deletes it with its content.
pub(super) struct Disk {
    mountpoint: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Creates the file system and mounts it on the folder of the tests' stores.
    pub(super) fn mount() -> Result<Self> {
        let disk = Self { mountpoint: paths::root().join(FOLDER), image: paths::target().join("test-disk.img") };
        // A killed run may have left one behind.
        disk.remove();
        fs::create_dir_all(&disk.mountpoint)?;
        fs::create_dir_all(paths::target())?;
        let file = File::create(&disk.image).with_context(|| format!("cannot write {}", disk.image.display()))?;
        let below = rustix::fs::fstatvfs(&file)?;
        let free = below.f_bavail.saturating_mul(below.f_frsize);
        if free < NEEDED {
            println!(
                "the disk of {} has {} MiB left; the tests may need {} MiB",
                disk.image.display(),
                free >> 20,
                NEEDED >> 20
            );
        }
        file.set_len(BYTES.min(free))?;
        let make = process::find("mkfs.ext4").context("mkfs.ext4 is not installed")?;
        process::check(Command::new(make).args(["-q", "-F", "-E", "nodiscard"]).arg(&disk.image))?;
        process::check(Command::new("mount").args(["-o", OPTIONS]).arg(&disk.image).arg(&disk.mountpoint))?;
        Ok(disk)
    }

    /// Removes the file system. Mounts inside, left by a failed test, go with it when they are no longer in use.
    fn remove(&self) {
        let _not_mounted = unmount(&self.mountpoint, UnmountFlags::DETACH);
        let _absent = fs::remove_file(&self.image);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.remove();
    }
}

//! A file system of its own for the stores of the end-to-end tests.
//!
//! They make and delete hundreds of thousands of small files, and wait until each is on the disk. Where the disk is slow
//! to flush, or its file system slow to create files after many were deleted (ext4 without a journal searches all
//! that were deleted in the last minutes: 40 % of the processor time of such a test), that is most of what they do.
//! Nothing in it must survive a power failure, so here a flush costs nothing.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::{paths, process};

/// Where the end-to-end tests make their folders: `tarpon_tests::real::scratch`.
const FOLDER: &str = "target/e2e";

/// The most that fits. The file is sparse: it takes what is in it.
const BYTES: u64 = 24 << 30;

/// No barriers: a flush need not reach the disk. `discard` gives the space of deleted files back at once.
const OPTIONS: &str = "loop,nobarrier,data=writeback,commit=300,noatime,discard";

/// The mounted file system. Dropped, it and its content are gone.
pub(super) struct Disk {
    mountpoint: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// Makes it and mounts it where the tests keep their stores.
    pub(super) fn mount() -> Result<Self> {
        let disk = Self { mountpoint: paths::root().join(FOLDER), image: paths::target().join("test-disk.img") };
        // One that a killed run left behind.
        disk.remove();
        fs::create_dir_all(&disk.mountpoint)?;
        fs::create_dir_all(paths::target())?;
        let file = File::create(&disk.image).with_context(|| format!("cannot write {}", disk.image.display()))?;
        file.set_len(BYTES)?;
        let make = process::find("mkfs.ext4").context("mkfs.ext4 is not installed")?;
        process::check(Command::new(make).args(["-q", "-F", "-E", "nodiscard"]).arg(&disk.image))?;
        process::check(Command::new("mount").args(["-o", OPTIONS]).arg(&disk.image).arg(&disk.mountpoint))?;
        Ok(disk)
    }

    /// A test that failed may have left mounts inside, which go with it when nobody uses them any more.
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

//! The disk of the store: a file with a file system, in a format of qemu.
//!
//! A killed qemu loses what the guest did not write yet. With an overlay it also loses what the guest wrote and did not
//! flush, as a disk with a volatile cache does: qemu keeps the table of new clusters in its memory until the guest
//! flushes. Without an overlay it loses only the writes to clusters that are new, so later writes may survive earlier ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tarpon_harness::process;

/// Several times what all images take.
const BYTES: u64 = 512 << 20;

/// The store's disk.
#[derive(Debug)]
pub(super) struct Disk {
    base: PathBuf,
    overlay: PathBuf,
    log: PathBuf,
    /// The mode of qemu's cache.
    pub(super) cache: &'static str,
}

impl Disk {
    /// Makes an empty disk in this folder.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let (raw, log) = (folder.join("store.raw"), folder.join("disk.log"));
        let disk = Self {
            base: folder.join("store.qcow2"),
            overlay: folder.join("overlay.qcow2"),
            cache: cache(folder)?,
            log,
        };
        File::create(&raw)?.set_len(BYTES)?;
        let make = process::find("mkfs.ext4").context("mkfs.ext4 is not installed")?;
        process::check(Command::new(make).args(["-q", "-F"]).arg(&raw))?;
        disk.image_tool(&["convert", "-O", "qcow2"], &[&raw, &disk.base])?;
        fs::remove_file(raw)?;
        Ok(disk)
    }

    /// The file for the next run of the machine. With `is_forgetful` the machine loses all that it did not flush.
    pub(super) fn attach(&self, is_forgetful: bool) -> Result<&Path> {
        if !is_forgetful {
            return Ok(&self.base);
        }
        let base = self.base.to_string_lossy();
        self.image_tool(&["create", "-f", "qcow2", "-F", "qcow2", "-b", &base], &[&self.overlay])?;
        Ok(&self.overlay)
    }

    /// Keeps what the overlay of the last run contains.
    pub(super) fn detach(&self) -> Result<()> {
        if self.overlay.exists() {
            self.image_tool(&["commit"], &[&self.overlay])?;
            fs::remove_file(&self.overlay)?;
        }
        Ok(())
    }

    fn image_tool(&self, arguments: &[&str], files: &[&Path]) -> Result<()> {
        process::check_logged(Command::new("qemu-img").args(arguments).args(files), &self.log)
    }
}

/// `none`, which passes the host's page cache, if the host's file system supports it. The choice changes no outcome: the
/// page cache of the host survives a killed qemu.
fn cache(folder: &Path) -> Result<&'static str> {
    let probe = folder.join("probe");
    let opened = rustix::fs::open(&probe, OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::RWXU);
    let cache = match opened {
        Ok(_) => "none",
        Err(Errno::INVAL) => {
            println!("the file system of {} refuses O_DIRECT: the disk goes through the page cache", folder.display());
            "writeback"
        }
        Err(error) => return Err(error).with_context(|| format!("cannot write {}", probe.display())),
    };
    fs::remove_file(probe)?;
    Ok(cache)
}

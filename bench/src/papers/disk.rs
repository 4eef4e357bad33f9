//! A file system on a loop device of its own, whose writes are counted, and limited if wanted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::{paths, process};

use crate::machine;
use crate::service::unmount_below;

/// Its size; the file takes only what is written.
const SIZE: u64 = 6 << 30;

/// The length of the sectors that the kernel counts in.
const SECTOR: u64 = 512;

/// Where cgroups of version 1 limit a device. The limits of the root group apply to all its writes, those of the page cache too.
const LIMITS: &str = "/sys/fs/cgroup/blkio";

/// Whether a device can be limited here.
pub(super) fn can_be_limited() -> bool {
    limit_file("write").exists()
}

fn limit_file(way: &str) -> PathBuf {
    Path::new(LIMITS).join(format!("blkio.throttle.{way}_bps_device"))
}

/// A mounted file system. Dropping it unmounts it and removes its file.
pub(super) struct Disk {
    root: PathBuf,
    file: PathBuf,
    /// `/dev/loopN`.
    device: String,
    is_limited: bool,
}

impl Disk {
    /// An empty file system, mounted, that reads and writes at most so many bytes per second.
    pub(super) fn new(rate: Option<u64>) -> Result<Self> {
        let (root, file) = (paths::benchmarks().join("papers-disk"), paths::benchmarks().join("papers-disk.img"));
        unmount_below(&root);
        machine::made(&root)?;
        File::create(&file)?.set_len(SIZE).with_context(|| format!("cannot make {}", file.display()))?;
        process::output(
            Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&file),
        )?;
        let device = process::output(Command::new("losetup").args(["--find", "--show"]).arg(&file))?;
        let mut disk = Self { root, file, device, is_limited: false };
        process::check(Command::new("mount").arg(&disk.device).arg(&disk.root))?;
        if let Some(rate) = rate {
            disk.limit(rate)?;
            disk.is_limited = true;
        }
        Ok(disk)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes written to the device so far, as the block layer counts them.
    pub(super) fn written(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.system().join("stat")).context("the device has no counters")?;
        written(&stat).context("the device's counters are of an unknown form")
    }

    /// Waits until everything is on the device.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(File::open(&self.root)?).context("cannot write the page cache back")
    }

    fn system(&self) -> PathBuf {
        Path::new("/sys/block").join(self.device.trim_start_matches("/dev/"))
    }

    /// Sets the most bytes per second; 0 is no limit.
    fn limit(&self, rate: u64) -> Result<()> {
        let number = fs::read_to_string(self.system().join("dev")).context("the device has no number")?;
        for way in ["read", "write"] {
            fs::write(limit_file(way), format!("{} {rate}", number.trim())).context("cannot limit the device")?;
        }
        Ok(())
    }
}

/// The bytes written, in the line of counters of a block device.
fn written(stat: &str) -> Option<u64> {
    let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * SECTOR)
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_limited {
            let _left = self.limit(0);
        }
        unmount_below(&self.root);
        let mut detach = Command::new("losetup");
        detach.arg("--detach").arg(&self.device);
        machine::quietly(detach);
        let _left = fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_written_are_the_seventh_counter() {
        let stat = "    5431    15968   153786     1131       87      104   120740      119        0      980     1266";
        assert_eq!(written(stat), Some(120_740 * 512));
        assert_eq!(written("1 2 3"), None);
    }
}

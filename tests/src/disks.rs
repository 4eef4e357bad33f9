//! File systems that are small, read-only, or do not answer. Dropping one unmounts it.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::real;

/// A file system that has room for so many bytes.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// An empty one.
    pub fn of(bytes: usize) -> Self {
        let folder = real::scratch().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]);
        real::run(mount.arg(folder.path())).unwrap();
        Self(folder)
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        detach(self.0.path());
    }
}

/// A folder in which no user can write, not even root.
pub struct ReadOnly(PathBuf);

impl ReadOnly {
    /// The folder is read-only as long as this exists.
    pub fn over(folder: &Path) -> Self {
        let mount = |options: &[&str]| real::run(Command::new("mount").args(options).arg(folder)).unwrap();
        real::run(Command::new("mount").arg("--bind").arg(folder).arg(folder)).unwrap();
        mount(&["-o", "remount,bind,ro"]);
        Self(folder.to_owned())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// A folder whose file system does not answer, as one whose server is away.
pub struct Hung {
    folder: PathBuf,
    /// Where the kernel waits for answers. What waits fails when it is closed.
    _device: File,
}

impl Hung {
    /// The folder does not answer as long as this exists.
    pub fn over(folder: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        rustix::mount::mount("hung", folder, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        Self { folder: folder.to_owned(), _device: device }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        detach(&self.folder);
    }
}

fn detach(folder: &Path) {
    let _is_gone_already = rustix::mount::unmount(folder, UnmountFlags::DETACH);
}

//! A directory that shows a running machine what is mounted later, as Kata arranges it.
//!
//! ```text
//! mounts/  (shared)  ──propagation──►  shared/  (slave)  ──propagation──►  virtiofsd's mount namespace
//!   later/rootfs ◄── bind mount of a root
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tarpon_harness::process;

/// The directory. Dropping it removes its mounts.
pub(super) struct Shared {
    mounts: PathBuf,
    /// What virtiofsd shares.
    pub(super) dir: PathBuf,
}

impl Shared {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let made = Self { mounts: folder.join("mounts"), dir: folder.join("shared") };
        fs::create_dir_all(&made.mounts)?;
        fs::create_dir_all(&made.dir)?;
        mount(&["--bind"], &[&made.mounts, &made.mounts])?;
        mount(&["--make-shared"], &[&made.mounts])?;
        mount(&["--bind"], &[&made.mounts, &made.dir])?;
        mount(&["--make-slave"], &[&made.dir])?;
        Ok(made)
    }

    /// Shows a root.
    pub(super) fn show(&self, root: &Path) -> Result<()> {
        let to = self.mounts.join("later/rootfs");
        fs::create_dir_all(&to)?;
        mount(&["--bind"], &[root, &to])
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for dir in [&self.dir, &self.mounts] {
            let _reported = process::check(Command::new("umount").args(["--recursive", "--lazy"]).arg(dir));
        }
    }
}

fn mount(options: &[&str], paths: &[&Path]) -> Result<()> {
    process::check(Command::new("mount").args(options).args(paths))
}

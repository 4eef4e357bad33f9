//! [`BenchStore`]: a store of the benchmark, emptied before each run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tarpon_harness::paths;

use super::machine;

/// A store, with the program that works on it.
pub(crate) struct BenchStore {
    tarpon: PathBuf,
    folder: PathBuf,
}

impl BenchStore {
    /// The store of this name.
    pub(crate) fn named(tarpon: &Path, name: &str) -> Self {
        Self::at(tarpon, paths::benchmarks().join(name))
    }

    /// The store in a folder.
    pub(crate) fn at(tarpon: &Path, folder: PathBuf) -> Self {
        Self { tarpon: tarpon.to_owned(), folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A tarpon command on it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.tarpon);
        command.env("TARPON_STORE", &self.folder).stdin(Stdio::null());
        command
    }

    /// The process that serves its mounts, if one does.
    pub(crate) fn server(&self) -> Option<u32> {
        machine::server(&self.tarpon, &self.folder)
    }

    /// Empties it.
    pub(crate) fn begin(&self) -> Result<()> {
        self.remove()?;
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))
    }

    /// Removes it with everything that is mounted from it.
    pub(crate) fn remove(&self) -> Result<()> {
        if self.folder.exists() {
            self.remove_containers()?;
            let server = self.server();
            let mut unmount = self.command();
            unmount.args(["umount", "--all"]);
            machine::quietly(unmount);
            server.map_or(Ok(()), machine::wait_for_end)?;
        }
        machine::remove(&self.folder)
    }

    /// Removes containers left by a failed run.
    fn remove_containers(&self) -> Result<()> {
        let listed = self.command().args(["ps", "-a", "--names"]).stderr(Stdio::null()).output();
        let listed = listed.context("cannot list the containers")?;
        for name in String::from_utf8_lossy(&listed.stdout).lines() {
            let mut remove = self.command();
            remove.args(["rm", "--force", name]);
            machine::quietly(remove);
        }
        Ok(())
    }
}

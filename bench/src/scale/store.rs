//! [`BenchStore`]: a store of the benchmark, emptied before each run.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tarpon_harness::paths;

use super::setting::Setting;
use crate::machine;

/// A store, with the program that works on it.
pub(super) struct BenchStore {
    tarpon: PathBuf,
    folder: PathBuf,
}

impl BenchStore {
    /// The store of one host.
    pub(super) fn of(setting: &Setting<'_>) -> Self {
        Self { tarpon: setting.tarpon.clone(), folder: paths::benchmarks().join("scale") }
    }

    /// The store of one of many hosts.
    pub(super) fn of_host(setting: &Setting<'_>, number: u64) -> Self {
        Self { tarpon: setting.tarpon.clone(), folder: paths::benchmarks().join(format!("scale-host-{number}")) }
    }

    /// A tarpon command on it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.tarpon);
        command.env("TARPON_STORE", &self.folder).stdin(Stdio::null());
        command
    }

    /// The process that serves its mounts, if one does.
    pub(super) fn server(&self) -> Option<u32> {
        machine::server(&self.tarpon, &self.folder)
    }

    /// Empties it.
    pub(super) fn begin(&self) -> Result<()> {
        self.remove()?;
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))
    }

    /// Removes it with everything that is mounted from it.
    pub(super) fn remove(&self) -> Result<()> {
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

/// A tarpon command on the store of one host.
pub(super) fn on_store(setting: &Setting<'_>) -> Command {
    BenchStore::of(setting).command()
}

/// Empties the store of one host.
pub(super) fn fresh_store(setting: &Setting<'_>) -> Result<PathBuf> {
    let store = BenchStore::of(setting);
    store.begin().map(|()| store.folder)
}

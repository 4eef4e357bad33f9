//! An ordinary user, for whom `tarpon` is installed.

use std::ops::Deref;
use std::path::Path;
use std::process::Output;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::real;
use crate::tarpon::binary;

pub use tarpon_harness::ordinary::FIRST;

/// Why there can be no ordinary user here; `None` if there can.
pub fn missing() -> Option<String> {
    if let Some(reason) = real::missing() {
        return Some(reason);
    }
    let needed = ["newuidmap", "fusermount3", "nsenter", "setpriv", "crun"];
    let absent: Vec<_> = needed.into_iter().filter(|program| !real::have(&[program])).collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// The user. Dropping it ends all of the user's processes and removes the files.
pub struct Ordinary {
    user: tarpon_harness::ordinary::Ordinary,
    _work: TempDir,
}

impl Deref for Ordinary {
    type Target = tarpon_harness::ordinary::Ordinary;

    fn deref(&self) -> &Self::Target {
        &self.user
    }
}

impl Ordinary {
    /// A user with subordinate IDs.
    pub fn new() -> Result<Self> {
        Self::with(&format!("anna:{FIRST}:65536\n"))
    }

    /// A user with these lines in `/etc/subuid` and `/etc/subgid`.
    pub fn with(ids: &str) -> Result<Self> {
        let work = real::scratch()?;
        let programs = binary().parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self { user: tarpon_harness::ordinary::Ordinary::new(work.path(), &programs, ids)?, _work: work })
    }

    /// Runs `tarpon` to its end.
    pub fn output(&self, arguments: &[&str]) -> Result<Output> {
        self.command(binary()).args(arguments).output().context("start tarpon")
    }

    /// Runs `tarpon`, which must succeed. Returns its output.
    pub fn tarpon(&self, arguments: &[&str]) -> Result<String> {
        real::run(self.command(binary()).args(arguments))
    }

    /// Runs another program, which must succeed. Returns its output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        real::run(self.command(program).args(arguments))
    }
}

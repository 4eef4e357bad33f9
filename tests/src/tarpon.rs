//! The `tarpon` binary as a user runs it, with a store of its own and everything unmounted at the end.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::real;

/// The binary of this build.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TARPON_BIN") {
        return named.into();
    }
    let mut folder = std::env::current_exe().expect("a test has an executable");
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder.join("tarpon")
}

/// A store with its mounts. Dropping it unmounts them, ends the server and deletes the store.
pub struct Tarpon {
    work: TempDir,
    mounts: Vec<PathBuf>,
    made: usize,
    user: Option<u32>,
}

impl Tarpon {
    /// An empty store.
    pub fn new() -> Result<Self> {
        Ok(Self { work: real::scratch()?, mounts: Vec::new(), made: 0, user: None })
    }

    /// An empty store of an ordinary user, whose commands run with that user's rights.
    pub fn of_user(user: u32) -> Result<Self> {
        let mut this = Self::new()?;
        this.user = Some(user);
        std::os::unix::fs::chown(this.work.path(), Some(user), Some(user))?;
        Ok(this)
    }

    /// The program runs as the user of the store.
    pub fn run_as_user<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        if let Some(user) = self.user {
            command.uid(user).gid(user).env("HOME", self.work.path()).env_remove("XDG_RUNTIME_DIR");
        }
        command
    }

    /// The store's directory.
    pub fn store(&self) -> PathBuf {
        self.work.path().join("store")
    }

    /// A command on this store; arguments follow.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(binary());
        self.run_as_user(&mut command).env("TARPON_STORE", self.store()).arg(subcommand).stdin(Stdio::null());
        // Certificates of the environment give workers a right that the tests of confinement do not expect.
        command.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
        command
    }

    /// Runs a subcommand to its end.
    pub fn output(&self, subcommand: &str, arguments: &[&str]) -> Result<Output> {
        self.command(subcommand).args(arguments).output().context("start tarpon (cargo build -p tarpon)")
    }

    /// Runs a subcommand that must succeed; returns its output.
    pub fn run(&self, subcommand: &str, arguments: &[&str]) -> Result<String> {
        let output = self.output(subcommand, arguments)?;
        if !output.status.success() {
            bail!("tarpon {subcommand} {arguments:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Mounts an image on a new directory.
    pub fn mount(&mut self, image: &str, options: &[&str]) -> Result<PathBuf> {
        let target = self.work.path().join(format!("mount-{}", self.made));
        self.made += 1;
        std::fs::create_dir(&target)?;
        std::os::unix::fs::chown(&target, self.user, self.user)?;
        let path = target.to_string_lossy().into_owned();
        self.mounts.push(target.clone());
        self.run("mount", &[options, &[image, &path]].concat())?;
        Ok(target)
    }

    /// Unmounts one of its mounts.
    pub fn unmount(&mut self, target: &Path) -> Result<()> {
        self.run("umount", &[&target.to_string_lossy()])?;
        self.mounts.retain(|mount| mount != target);
        Ok(())
    }

    /// Removes all containers of the store, running or not.
    pub fn remove_containers(&self) {
        for name in self.run("ps", &["-a", "--names"]).unwrap_or_default().lines() {
            let _ = self.output("rm", &["-f", name]);
        }
    }

    /// Output of `status --json`.
    pub fn status(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&self.run("status", &["--json"])?)?)
    }
}

impl Drop for Tarpon {
    fn drop(&mut self) {
        for mount in std::mem::take(&mut self.mounts) {
            let _ = self.output("umount", &["--lazy", &mount.to_string_lossy()]);
            // Failed tests may leave a mount without a server.
            let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

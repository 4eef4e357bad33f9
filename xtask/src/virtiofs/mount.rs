//! An image that tarpon mounts on the host, from an empty store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use tarpon_harness::process;

/// A mount. Dropping it unmounts it, and ends the server of its store.
pub(super) struct Mount {
    tarpon: PathBuf,
    store: PathBuf,
    pub(super) dir: PathBuf,
}

/// What was fetched for a mount.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetched {
    /// Bytes received, with those from before the mount.
    pub(super) bytes: u64,
    /// Bytes of the image's layers.
    pub(super) image: u64,
}

impl Fetched {
    /// What the status of a mount shows.
    pub(super) fn of(status: &Value) -> Result<Self> {
        let number = |key: &str| status[key].as_u64().with_context(|| format!("the status has no {key}"));
        Ok(Self { bytes: number("prepared_bytes")? + number("fetched_bytes")?, image: number("image_bytes")? })
    }
}

/// The mode in the status of a mount: `native` or `fuse`.
pub(super) fn mode(status: &Value) -> Result<String> {
    Ok(status["mode"].as_str().context("the status has no mode")?.to_owned())
}

impl Mount {
    /// Mounts the image in `folder`, with what `options` adds, as `--rw`.
    pub(super) fn new(tarpon: &Path, folder: &Path, image: &str, options: &[&str]) -> Result<Self> {
        let mount = Self { tarpon: tarpon.to_owned(), store: folder.join("store"), dir: folder.join("root") };
        fs::create_dir_all(&mount.dir)?;
        let mut command = mount.command(&["mount", "--no-learn"]);
        process::check(command.args(options).arg(image).arg(&mount.dir))?;
        Ok(mount)
    }

    pub(super) fn fetched(&self) -> Result<Fetched> {
        Fetched::of(&self.status()?)
    }

    /// The process that serves it.
    pub(super) fn server(&self) -> Result<i32> {
        let server = self.status()?["server"].as_i64().context("the status has no server")?;
        Ok(i32::try_from(server)?)
    }

    /// `native` or `fuse`.
    pub(super) fn mode(&self) -> Result<String> {
        mode(&self.status()?)
    }

    fn status(&self) -> Result<Value> {
        let text = process::output(self.command(&["status", "--json"]).arg(&self.dir))?;
        serde_json::from_str(&text).context("tarpon prints no JSON")
    }

    pub(super) fn unmount(self) -> Result<()> {
        let unmounted = process::check(self.command(&["umount"]).arg(&self.dir));
        // Nothing is left for `drop` in either case: a second attempt fails as the first.
        std::mem::forget(self);
        unmounted
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.tarpon);
        command.arg("--quiet").arg("--store").arg(&self.store).args(arguments);
        command
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _reported = process::check(self.command(&["umount"]).arg(&self.dir));
    }
}

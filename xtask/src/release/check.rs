//! Installs the package on a clean Debian, uses it and removes it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::paths;

use super::common::VERSION;
use super::target::Target;
use crate::debian;

/// The stable release and the one before.
const SUITES: &[&str] = &["trixie", "bookworm"];

/// What the check itself uses: `man`, and `systemd-analyze`.
const INCLUDE: &str = "man-db,systemd";

/// The steps, below a chroot in a mount namespace.
const SCRIPT: &str = include_str!("check.sh");

/// Checks the packages in a folder.
pub(super) fn run(folder: &Path) -> Result<()> {
    if !packages::is_root() {
        bail!("the check installs packages in a chroot, which needs root");
    }
    packages::ensure(&[tool("debootstrap", "debootstrap"), tool("unshare", "util-linux")])?;
    let native =
        Target::TESTED.iter().find(|target| target.is_native()).context("no release for this machine is tested")?;
    let package = folder.join(format!("tarpon_{}-1_{}.deb", VERSION, native.debian())).canonicalize();
    let package = package.with_context(|| format!("no package for this machine in {}", folder.display()))?;
    for suite in SUITES {
        println!("==== Debian {suite}");
        let parent = paths::target().join("release-check");
        let work = parent.join("work");
        fs::create_dir_all(&work)?;
        let base = debian::root(&parent.join(suite), suite, INCLUDE)?;
        let mut unshare = Command::new("unshare");
        // All mounts and processes end with it.
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        unshare.args(["sh", "-c", SCRIPT, "check"]).args([&base, &package, &work]);
        // Without the script, which is an argument.
        if !unshare.status().context("cannot start unshare")?.success() {
            bail!("the package fails on Debian {suite}");
        }
    }
    Ok(())
}

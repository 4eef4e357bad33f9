//! Installs the package on a clean Debian, uses it and removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, process};

use super::common::VERSION;
use super::target::Target;

/// The stable release and the one before.
const SUITES: &[&str] = &["trixie", "bookworm"];

const MIRROR: &str = "http://deb.debian.org/debian";

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
        let base = base(suite)?;
        let work = paths::target().join("release-check/work");
        fs::create_dir_all(&work)?;
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

/// A Debian of this release with little more than its essential packages.
fn base(suite: &str) -> Result<PathBuf> {
    let folder = paths::target().join("release-check");
    let base = folder.join(suite);
    if base.exists() {
        return Ok(base);
    }
    println!("unpacking Debian {suite}");
    let part = folder.join(format!("{suite}.part"));
    // What an interrupted run left.
    let _absent = fs::remove_dir_all(&part);
    fs::create_dir_all(&folder)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={INCLUDE}"), suite]).arg(&part).arg(MIRROR);
    process::check_logged(&mut debootstrap, &folder.join("debootstrap.log"))?;
    // The rename shows that all of it is there.
    fs::rename(&part, &base).with_context(|| format!("cannot rename {}", part.display()))?;
    Ok(base)
}

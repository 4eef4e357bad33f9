//! The packages for Debian and for distributions with RPM. `crates/cli/Cargo.toml` lists their files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tarpon_harness::process;

use super::common::{Folders, MAINTAINER, PROFILE, VERSION};
use super::target::Target;
use super::tools::Tools;

/// Writes the package for Debian.
pub(super) fn deb(folders: &Folders, target: Target, tools: &Tools, to: &Path) -> Result<PathBuf> {
    let file = to.join(format!("tarpon_{}-1_{}.deb", VERSION, target.debian()));
    let mut make = tools.packager(folders)?;
    make.args(["deb", "--quiet", "--no-build", "--no-strip", "--locked", "--package", "tarpon", "--profile", PROFILE]);
    make.args(["--maintainer", MAINTAINER, "--target", target.triple(), "--output"]).arg(&file);
    process::check(make.env("CARGO_TARGET_DIR", &folders.target))?;
    Ok(file)
}

/// Writes the package for RPM.
pub(super) fn rpm(folders: &Folders, target: Target, tools: &Tools, to: &Path) -> Result<PathBuf> {
    let file = to.join(format!("tarpon-{}-1.{}.rpm", VERSION, target.triple().split('-').next().unwrap_or("")));
    let folder = folders.target.to_str().context("the name of the target folder is not UTF-8")?;
    let mut make = tools.packager(folders)?;
    // A static program needs no library, so there is nothing to look for.
    make.args(["generate-rpm", "--package", "crates/cli", "--profile", PROFILE, "--auto-req", "disabled"]);
    make.args(["--target", target.triple(), "--target-dir", folder, "--output"]).arg(&file);
    process::check(&mut make)?;
    Ok(file)
}

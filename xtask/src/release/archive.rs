//! The archive of a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

/// Files beside the program, by their paths in the repository. Cargo.lock lists all crates of the program: tools for
/// advisories read it.
const FILES: &[&str] = &[
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "Cargo.lock",
    "contrib/systemd/tarpon.service",
    "contrib/systemd/tarpon.socket",
];

/// What goes into an archive.
pub(super) struct Input<'a> {
    /// Name of the archive without `.tar.gz`, and of the only folder in it.
    pub(super) name: String,
    pub(super) program: &'a Path,
    /// The root of the repository.
    pub(super) root: &'a Path,
    /// The modification time of all files.
    pub(super) seconds: u64,
    /// The folder of the archive.
    pub(super) to: &'a Path,
}

/// Writes the archive. The same input gives the same bytes: names in order, no owner, one time, fixed modes.
pub(super) fn write(input: &Input<'_>) -> Result<PathBuf> {
    let folder = input.to.join(&input.name);
    copy(input.program, &folder.join("tarpon"))?;
    for file in FILES {
        copy(&input.root.join(file), &folder.join(file))?;
    }
    let (tar, packed) = (format!("{}.tar", input.name), input.to.join(format!("{}.tar.gz", input.name)));
    let mut command = Command::new("tar");
    command.args(["--create", "--format=ustar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    command.arg("--mode=u=rwX,go=rX").arg(format!("--mtime=@{}", input.seconds));
    process::check(command.args(["--file", &tar, &input.name]).current_dir(input.to))?;
    // Without name and time in the header.
    process::check(Command::new("gzip").args(["-9", "--no-name", &tar]).current_dir(input.to))?;
    fs::remove_dir_all(&folder)?;
    Ok(packed)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

//! Makes the files of a release: for each target an archive, packages and a bill of materials; checksums, and with a key a
//! signature of the checksums.
//!
//! docs/releases.md describes them for those who verify a release. The same commit gives the same bytes in any folder: the
//! tools have one version each, and `build` and `archive` remove what differs. `again` checks it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::paths;

use self::common::{Folders, VERSION, git};
use self::target::Target;
use self::tools::Tools;

mod again;
mod archive;
mod build;
mod check;
mod checksums;
mod common;
mod make;
mod package;
mod parts;
mod target;
#[cfg(test)]
mod tests;
mod tools;
mod tree;

/// The options of `cargo xtask release`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files go, an empty folder [default: release-VERSION in the target folder]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// For these processors [default: x86_64]
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<Target>,
    /// Sign the checksums with this secret key of minisign
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Make everything a second time in other folders, and compare
    #[arg(long)]
    verify_reproducible: bool,
    /// Make nothing: install the packages in DIR on a clean Debian, use them, remove them; needs root
    #[arg(long, value_name = "DIR", conflicts_with_all = ["to", "targets", "key", "verify_reproducible"])]
    check: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(folder) = &args.check {
        return check::run(folder);
    }
    // Before the build, which takes minutes.
    packages::ensure(&[tool("python3", "python3"), tool("pip3", "python3-pip")])?;
    if args.key.is_some() {
        packages::ensure(&[tool("minisign", "minisign")])?;
    }
    let targets = if args.targets.is_empty() { Target::TESTED } else { args.targets.as_slice() };
    let root = paths::root();
    check_clean(&root)?;
    let to = args.to.clone().unwrap_or_else(|| paths::target().join(format!("release-{VERSION}")));
    check_empty(&to)?;
    // Programs that write to it run in other folders.
    let to = to.canonicalize()?;
    build::install_compiler(targets)?;
    let tools = Tools::install()?;
    let folders = Folders {
        seconds: commit_seconds(&root)?,
        target: paths::target().join("release-build"),
        home: build::cargo_home()?,
        root,
    };
    let sums = make::make(&folders, targets, &tools, &to)?;
    if args.verify_reproducible {
        again::compare(&to, &folders, targets, &tools, &paths::target().join("release-again"))?;
    }
    if let Some(key) = &args.key {
        checksums::sign(&sums, key, &format!("tarpon {VERSION}"))?;
    }
    print!("{}", fs::read_to_string(&sums)?);
    println!("{} is {VERSION} of commit {}", to.display(), git(&folders.root, &["rev-parse", "HEAD"])?);
    if args.key.is_none() {
        println!("it is not signed: no --key was given");
    }
    Ok(())
}

/// A release is made of a commit, so that others can build it again.
fn check_clean(root: &Path) -> Result<()> {
    let changed = git(root, &["status", "--porcelain"])?;
    if !changed.is_empty() {
        bail!("the work tree differs from its commit: commit or remove these first:\n{changed}");
    }
    Ok(())
}

/// Files of another release must not get into this one's checksums.
fn check_empty(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if fs::read_dir(folder)?.next().is_some() {
        bail!("{} is not empty: remove what it holds, or name another folder with --to", folder.display());
    }
    Ok(())
}

/// The time of the commit, which all files in the archive get.
fn commit_seconds(root: &Path) -> Result<u64> {
    git(root, &["log", "-1", "--format=%ct"])?.parse().context("git gives no time of the commit")
}

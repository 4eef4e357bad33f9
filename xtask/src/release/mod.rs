//! Makes the files of a release: an archive with the program, checksums, and with a key a signature of the checksums.
//!
//! docs/releases.md describes them for those who verify a release. The same commit gives the same bytes in any folder, on
//! any machine with the same compilers: `build` and `archive` remove what differs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, process};

mod archive;
mod build;
mod checksums;
#[cfg(test)]
mod tests;

/// The options of `cargo xtask release`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the files go, an empty folder [default: release-VERSION in the target folder]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Sign the checksums with this secret key of minisign
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &Args) -> Result<()> {
    // Before the build, which takes minutes.
    packages::ensure(&[tool("tar", "tar"), tool("gzip", "gzip")])?;
    if args.key.is_some() {
        packages::ensure(&[tool("minisign", "minisign")])?;
    }
    let root = paths::root();
    check_clean(&root)?;
    let to = args.to.clone().unwrap_or_else(|| paths::target().join(format!("release-{VERSION}")));
    check_empty(&to)?;
    let program = build::program(&root)?;
    let archive = archive::write(&archive::Input {
        name: format!("tarpon-{VERSION}-{}", build::host()?),
        program: &program,
        root: &root,
        seconds: commit_seconds(&root)?,
        to: &to,
    })?;
    let sums = checksums::write(&to, &[&archive])?;
    if let Some(key) = &args.key {
        checksums::sign(&sums, key, &format!("tarpon {VERSION}"))?;
    }
    println!("{} is {VERSION} of commit {}", to.display(), git(&root, &["rev-parse", "HEAD"])?);
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

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    process::output(Command::new("git").args(arguments).current_dir(root))
}

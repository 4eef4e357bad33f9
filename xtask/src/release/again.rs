//! Makes a release a second time, in other folders, and compares.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tarpon_harness::process;

use super::common::Folders;
use super::target::Target;
use super::tools::Tools;
use super::{checksums, make};

/// Makes the release in a new checkout of the commit, with another target folder and another name of cargo's home, below
/// `work`. All files must be the same.
pub(super) fn compare(first: &Path, folders: &Folders, targets: &[Target], tools: &Tools, work: &Path) -> Result<()> {
    // What an earlier comparison left.
    let _absent = fs::remove_dir_all(work);
    let (root, to) = (work.join("a-checkout-with-another-name"), work.join("files"));
    fs::create_dir_all(&to)?;
    let mut clone = Command::new("git");
    process::check(clone.args(["clone", "--quiet", "--no-local"]).arg(&folders.root).arg(&root))?;
    let home = work.join("home");
    // The crates themselves need not be fetched again.
    std::os::unix::fs::symlink(&folders.home, &home)?;
    let second = Folders { root, target: work.join("built"), home, seconds: folders.seconds };
    make::make(&second, targets, tools, &to)?;
    let (first, second) = (sums(first)?, sums(&to)?);
    if first != second {
        bail!("the second release in {} differs:\n{first}\nand\n{second}", to.display());
    }
    println!("a second release, made in {}, is the same", work.display());
    Ok(())
}

fn sums(folder: &Path) -> Result<String> {
    let file: PathBuf = folder.join(checksums::NAME);
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

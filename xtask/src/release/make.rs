//! Makes the files of a release in one checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tarpon_harness::process;

use super::common::{Folders, MAINTAINER, VERSION};
use super::target::Target;
use super::tools::Tools;
use super::{archive, build, checksums, package, parts, tree};

/// Makes everything but the signature, and returns the path of the checksums.
pub(super) fn make(folders: &Folders, targets: &[Target], tools: &Tools, to: &Path) -> Result<PathBuf> {
    let programs = targets.iter().map(|target| Ok((*target, build::program(folders, *target, tools)?)));
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let native = programs.iter().find(|(target, _)| target.is_native()).map(|(_, program)| program.clone());
    // Only a program that runs here writes its manual pages.
    let runnable = native.map_or_else(|| build::program(folders, Target::X86_64, tools), Ok)?;
    let mut files = Vec::new();
    for (target, program) in &programs {
        let results = folders.results(*target);
        let licences = parts::licences(folders, *target, tools)?;
        let input = tree::Input { root: &folders.root, program, runnable: &runnable, licences: &licences };
        let tree = results.join("tree");
        tree::write(&input, &tree)?;
        let changes = results.join("changelog.Debian.gz");
        tree::write_debian_changes(VERSION, &commit_date(&folders.root)?, MAINTAINER, &changes)?;
        let name = format!("tarpon-{VERSION}-{}", target.triple());
        files.push(archive::write(&tree, &name, folders.seconds, to)?);
        files.push(package::deb(folders, *target, tools, to)?);
        files.push(package::rpm(folders, *target, tools, to)?);
        files.push(parts::bill(folders, *target, tools, to)?);
    }
    files.sort();
    checksums::write(to, &files)
}

/// The time of the commit in the format of RFC 2822, which is that of Debian's changelogs.
fn commit_date(root: &Path) -> Result<String> {
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%cd", "--date=format-local:%a, %d %b %Y %H:%M:%S +0000"]).current_dir(root);
    process::output(log.envs([("TZ", "UTC"), ("LC_ALL", "C")]))
}

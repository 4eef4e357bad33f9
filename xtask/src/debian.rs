//! Roots of Debian for guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

const MIRROR: &str = "http://deb.debian.org/debian";

/// The root at `root`, with these packages (separated by commas) of this suite; it is made if it is missing, and not
/// changed afterwards.
pub(crate) fn root(root: &Path, suite: &str, packages: &str) -> Result<PathBuf> {
    let list = root.with_extension("packages");
    let wanted = format!("{suite} {packages}");
    if root.exists() && fs::read_to_string(&list).is_ok_and(|found| found == wanted) {
        return Ok(root.to_owned());
    }
    println!("unpacking Debian {suite}, which takes one to two minutes");
    let part = root.with_extension("part");
    // What an interrupted run left, or one with other packages.
    let _absent = (fs::remove_dir_all(&part), fs::remove_dir_all(root));
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={packages}"), suite]).arg(&part).arg(MIRROR);
    process::check_logged(&mut debootstrap, &root.with_extension("log"))?;
    process::check(Command::new("chroot").arg(&part).args(["apt-get", "clean"]))?;
    fs::write(list, wanted)?;
    // The rename shows that all of it is there.
    fs::rename(&part, root).with_context(|| format!("cannot rename {}", part.display()))?;
    Ok(root.to_owned())
}

/// Adds a package of this suite, which may be another one, to a root.
pub(crate) fn add(root: &Path, suite: &str, package: &str) -> Result<()> {
    let list = root.join("etc/apt/sources.list.d").join(format!("{suite}.list"));
    fs::write(&list, format!("deb {MIRROR} {suite} main\n"))
        .with_context(|| format!("cannot write {}", list.display()))?;
    for arguments in [&["update"][..], &["install", "--yes", "--target-release", suite, package], &["clean"]] {
        let mut apt = Command::new("chroot");
        // A mirror may be older than the week for which unstable's lists are valid; debootstrap does not check that either.
        apt.arg(root)
            .args(["apt-get", "--quiet", "-o", "Acquire::Check-Valid-Until=false"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        process::check_logged(&mut apt, &root.with_extension("log"))?;
    }
    Ok(())
}

//! The root of the guest: Debian 13 with systemd, Podman and containerd, unpacked once and not changed afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::process;

const SUITE: &str = "trixie";
const MIRROR: &str = "http://deb.debian.org/debian";

/// `curl` sends requests to containerd, `fuse3` has fusermount3.
const PACKAGES: &str = "systemd,dbus,ca-certificates,podman,crun,containerd,runc,fuse3,curl,procps";

/// The root below this folder, which is made if it is missing.
pub(super) fn get(folder: &Path) -> Result<PathBuf> {
    let (root, list) = (folder.join("root"), folder.join("root.packages"));
    if root.exists() && fs::read_to_string(&list).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(root);
    }
    println!("unpacking Debian {SUITE}, which takes one to two minutes");
    let part = folder.join("root.part");
    // What an interrupted run left, or one with other packages.
    let _absent = (fs::remove_dir_all(&part), fs::remove_dir_all(&root));
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE]).arg(&part).arg(MIRROR);
    process::check_logged(&mut debootstrap, &folder.join("debootstrap.log"))?;
    fs::remove_dir_all(part.join("var/cache/apt"))?;
    fs::write(list, PACKAGES)?;
    // The rename shows that all of it is there.
    fs::rename(&part, &root).with_context(|| format!("cannot rename {}", part.display()))?;
    Ok(root)
}

//! Removes dead FUSE mounts, which would make every program fail that looks at them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::process::report;

/// Poll interval for a mount that the kernel has not yet marked as dead.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of polls: the kernel releases everything of a process within milliseconds of its end.
const POLLS: u32 = 100;
/// Time for all mounts. A server that is alive, but does not answer, would block the check of its mount.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);
/// Mounts on top of each other at one place. More of them are not ours.
const MOST_AT_ONE_PLACE: u32 = 16;
/// The program by which unprivileged users unmount.
const FUSERMOUNT: &str = "fusermount3";

/// Removes the dead mounts of these places, each as soon as it is dead.
pub(super) fn remove(mount_points: Vec<PathBuf>) {
    if mount_points.is_empty() {
        return;
    }
    let (done, wait) = mpsc::channel::<()>();
    // A thread of its own, which ends with the process if it is blocked.
    std::thread::spawn(move || {
        poll(&mount_points);
        drop(done);
    });
    if wait.recv_timeout(REMOVAL_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        report("the check for dead mounts takes too long");
    }
}

fn poll(mount_points: &[PathBuf]) {
    let mut left: Vec<_> = mount_points.iter().filter(|path| is_mounted(path)).collect();
    for _ in 0..POLLS {
        left.retain(|path| !remove_dead(path));
        if left.is_empty() {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Whether something may be mounted here. What is mounted is looked at before it is removed.
fn is_mounted(path: &Path) -> bool {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, path, flags, StatxFlags::empty()) {
        Ok(found) => may_be_mount_root(found.stx_attributes, found.stx_attributes_mask),
        Err(errno) => is_dead_errno(errno),
    }
}

/// Whether a file with these attributes, of those that the kernel reports, may be the root of a mount. Before Linux 5.8 it does not
/// report that.
fn may_be_mount_root(attributes: StatxAttributes, reported: StatxAttributes) -> bool {
    !reported.contains(StatxAttributes::MOUNT_ROOT) || attributes.contains(StatxAttributes::MOUNT_ROOT)
}

/// Returns whether dead mounts were removed from this place.
fn remove_dead(path: &Path) -> bool {
    let mut removed = false;
    for _ in 0..MOST_AT_ONE_PLACE {
        if !is_dead(path) {
            break;
        }
        if let Err(errno) = unmount(path) {
            report(&format!("cannot unmount {}: {errno}", path.display()));
            return true;
        }
        removed = true;
    }
    removed
}

/// Whether FUSE reports that its server is dead. `statfs` is never answered from a cache.
fn is_dead(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let asked = rustix::fs::open(path, flags, Mode::empty()).and_then(|open| rustix::fs::fstatfs(&open));
    asked.is_err_and(is_dead_errno)
}

fn is_dead_errno(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

fn unmount(path: &Path) -> Result<(), Errno> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => {
            let mut command = Command::new(FUSERMOUNT);
            command.args(["-u", "-z", "--"]).arg(path).stdin(Stdio::null()).stdout(Stdio::null());
            if command.status().is_ok_and(|status| status.success()) { Ok(()) } else { Err(Errno::PERM) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_report_roots_of_mounts_may_have_one_everywhere() {
        let (root, none) = (StatxAttributes::MOUNT_ROOT, StatxAttributes::empty());
        assert!(may_be_mount_root(none, none));
        assert!(may_be_mount_root(root, root));
        assert!(!may_be_mount_root(none, root));
    }
}

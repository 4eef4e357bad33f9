//! Removing dead mounts, which make every program fail that looks at their directory.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Poll interval for a mount that the kernel has not yet marked as dead.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of polls: the kernel ends a connection within milliseconds of its last descriptor.
const POLLS: u32 = 50;

/// Unmounts `directory` if a FUSE file system is mounted there without a server.
pub(crate) fn remove(directory: &Path) {
    for _ in 0..POLLS {
        // It asks the kernel only: a directory without a mount, or with one that is served, is answered at once.
        match rustix::fs::statx(CWD, directory, AtFlags::empty(), StatxFlags::INO) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => {
                if let Err(error) = rustix::mount::unmount(directory, UnmountFlags::DETACH) {
                    tracing::error!(directory = %directory.display(), %error, "a dead mount stays");
                }
                return;
            }
            _ => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_dead_mount_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        remove(folder.path());
        assert!(folder.path().is_dir());
    }
}

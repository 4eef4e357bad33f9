//! [`Namespace`]: a network namespace with a name, so that it can be connected before the container starts.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::UnshareFlags;

/// A network namespace with a name: a mount of `/proc/…/ns/net` on an empty file, as `ip netns` makes them.
#[derive(Debug, Clone)]
pub(super) struct Namespace {
    path: PathBuf,
}

impl Namespace {
    /// The namespace with this name, whether or not it exists.
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file that pasta writes its process ID to. It is beside the name, where the AppArmor profile of pasta lets it write.
    pub(super) fn pasta_pid(&self) -> PathBuf {
        self.path.with_extension("pid")
    }

    /// Makes the namespace.
    pub(super) fn make(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
        std::fs::File::create_new(&self.path)?;
        let path = self.path.clone();
        // A new network namespace is that of one thread.
        let thread = std::thread::Builder::new().name("network".to_owned()).spawn(move || {
            unshare_network()?;
            Ok(mount_bind("/proc/thread-self/ns/net", &path)?)
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes the namespace ended early")))
    }

    /// Removes the name. The namespace ends with the last process in it.
    pub(super) fn remove(&self) -> io::Result<()> {
        // pasta holds the mount open until it notices that the name is gone.
        while tarpon_mount::is_mounted(&self.path) {
            unmount(&self.path, UnmountFlags::DETACH)?;
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[allow(unsafe_code, reason = "the library has one call for all flags, and one of them shares descriptors")]
fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: without CLONE_FILES the table of descriptors stays shared by all threads, so that each descriptor that a value owns stays
    // open.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

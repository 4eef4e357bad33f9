//! [`MountHost`]: the server that mounts and serves a root file system.

use std::fmt::Debug;
use std::path::Path;

use crate::Result;
use crate::client::{Client, Hold};
use crate::protocol::{MountRequest, MountStatus};

/// A server, in this or another process, that mounts and serves root file systems.
pub trait MountHost: Debug + Send + Sync {
    /// Mounts.
    fn mount(&self, request: MountRequest) -> Result<MountStatus>;

    /// Unmounts it. It may be unmounted already.
    fn unmount(&self, path: &Path) -> Result<()>;

    /// Keeps the server running until the returned value is dropped. `None`: it keeps running by itself.
    fn hold(&self) -> Result<Option<Hold>>;
}

impl MountHost for Client {
    fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        self.mount(request)
    }

    fn unmount(&self, path: &Path) -> Result<()> {
        self.release(path)
    }

    fn hold(&self) -> Result<Option<Hold>> {
        self.hold().map(Some)
    }
}

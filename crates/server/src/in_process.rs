//! [`InProcess`]: the server of this process as the host of root file systems.

use std::path::Path;
use std::sync::{Arc, Weak};

use tarpon_client::protocol::{MountRequest, MountStatus, Request, Response};
use tarpon_client::rootfs::MountHost;
use tarpon_client::{Hold, settled, unexpected};

use super::answer::carry_out;
use super::mount_table::MountTable;
use crate::{Error, ErrorKind, Result};

/// The mounts of the server in this process, as long as it lives.
#[derive(Debug)]
pub(super) struct InProcess(Weak<MountTable>);

impl InProcess {
    pub(super) fn of(mounts: &Arc<MountTable>) -> Self {
        Self(Arc::downgrade(mounts))
    }
}

impl MountHost for InProcess {
    fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        let mounts = self.0.upgrade().ok_or_else(|| Error::new(ErrorKind::Store, "mount", "the server ended"))?;
        match carry_out(&mounts, Request::mount(request))? {
            Response::Mounted(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    fn unmount(&self, path: &Path) -> Result<()> {
        // A server that has ended has unmounted everything.
        match self.0.upgrade() {
            Some(mounts) => settled(mounts.unmount(path, false), path),
            None => Ok(()),
        }
    }

    /// This process keeps running by itself.
    fn hold(&self) -> Result<Option<Hold>> {
        Ok(None)
    }
}

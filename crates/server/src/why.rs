//! The stalls of one mount, as the server knows them.

use std::path::Path;

use tarpon_client::protocol::MountAccount;

use super::mount_table::MountTable;
use crate::{Error, ErrorKind, Result};

impl MountTable {
    /// The account of what the mount at `mountpoint` waited for.
    pub(super) fn why(&self, mountpoint: &Path) -> Result<MountAccount> {
        if let Some(image) = self.exhibited(mountpoint) {
            let mount = self.status_at(mountpoint)?;
            return Ok(MountAccount {
                mount,
                has_pack: image.has_recorded_pack(),
                journal: image.handle().journal().account(),
            });
        }
        let served = self.places.mounted_at(mountpoint).ok_or_else(|| {
            let cause = format!("no image is mounted at {}", mountpoint.display());
            Error::new(ErrorKind::NotFound, "look for the mount", cause)
        })?;
        let (mount, image) = (self.describe(&served), &served.image);
        Ok(MountAccount { mount, has_pack: image.has_recorded_pack(), journal: image.handle().journal().account() })
    }
}

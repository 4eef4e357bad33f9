//! Operations of an [`Engine`] on the mounts of its store.

use crate::protocol::MountStatus;
use crate::{Engine, Result};

impl Engine {
    /// All mounts of this store: those of the running server, else those left by a dead one.
    pub fn mounts(&self) -> Result<Vec<MountStatus>> {
        self.client().mounts()
    }
}

//! Pins: while one lives, nothing stored after its start is evicted.
//!
//! An import stores objects long before the record that needs them is complete. A pin is a locked file: it ends with its
//! process, even if that is killed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::StoreError;
use crate::file_lock::FileLock;
use crate::files::{self, FILE_MODE, io_error, unique_name};
use crate::locks;
use crate::storage::Access;
use crate::store::{Shared, Store};

/// Protects everything stored (or found to exist) from now on from eviction, for the life of this value.
#[derive(Debug)]
pub struct Pin {
    shared: Arc<Shared>,
    path: PathBuf,
    _lock: FileLock,
}

impl Store {
    /// Starts a pin. Returns once no eviction runs that does not know of it.
    pub fn pin(&self) -> Result<Pin, StoreError> {
        let shared = &self.shared;
        let storage = shared.storage();
        let folder = shared.layout.name("pins");
        let failed = |error| shared.refuse(io_error("creating a pin in", &folder)(error));
        loop {
            // A new name each time: the process that holds the last one's lock may be stopped.
            let path = folder.join(unique_name());
            let file = storage.open(&path, Access::OpenOrCreate(FILE_MODE)).map_err(failed)?;
            // A sweep may have seen it between the two calls, and taken it for a dead one.
            let Some(held) = locks::hold(storage, file).map_err(failed)? else { continue };
            if storage.file_metadata(&held).map_err(failed)?.links == 0 {
                continue;
            }
            let pin = Pin { shared: Arc::clone(shared), path, _lock: held };
            shared.wait_for_eviction()?;
            return Ok(pin);
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Err(error) = files::unlink(self.shared.storage(), &self.path) {
            tracing::debug!(%error, "the next sweep will do it");
        }
    }
}

impl Shared {
    /// Start time of the oldest pin of a living process. Removes pins of dead ones.
    pub(crate) fn oldest_pin(&self) -> Result<Option<SystemTime>, StoreError> {
        Ok(self.pins()?.into_iter().min())
    }

    /// Number of pins of living processes.
    pub(crate) fn live_pins(&self) -> Result<usize, StoreError> {
        Ok(self.pins()?.len())
    }

    fn pins(&self) -> Result<Vec<SystemTime>, StoreError> {
        let storage = self.storage();
        let folder = self.layout.name("pins");
        let mut pins = Vec::new();
        for name in files::list(storage, &folder)? {
            let path = folder.join(name);
            let Ok(file) = storage.open(&path, Access::Read) else { continue };
            let modified = storage.file_metadata(&file).map_err(io_error("examining", &path))?.modified;
            match locks::hold(storage, file).map_err(io_error("locking", &path))? {
                Some(_dead) => files::unlink(storage, &path)?,
                None => pins.push(modified),
            }
        }
        Ok(pins)
    }
}

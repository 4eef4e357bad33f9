//! Maintenance of a store: the sweep when a server starts, the round every half minute, the clean stop.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use tarpon_oci::Digest;

use crate::StoreError;
use crate::evict::{Evicted, slack};
use crate::files::{self, read_record};
use crate::layout::TRACES;
use crate::locks::{COMMAND_WAIT, RECORD_WAIT};
use crate::mounts::{Mount, MountRecord};
use crate::record::ImageRecord;
use crate::refs::RefRecord;
use crate::sealed;
use crate::store::{Shared, Store};

/// Result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files and folders that dead processes left under construction.
    pub temporary: u64,
}

/// Why an image was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The image is mounted.
    #[error("the image is mounted at {}", .0.display())]
    Mounted(PathBuf),
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Removes the leftovers of dead processes. For the start of a server, which holds the lock and has no mounts yet.
    pub fn sweep(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        for folder in ["", "mounts"] {
            swept.temporary += self.sweep_temporary(&self.shared.layout.name(folder))?;
        }
        for part in self.parts()? {
            for folder in ["partial", "images", "layers", "refs", TRACES] {
                swept.temporary += self.sweep_temporary(&part.shared.layout.name(folder))?;
            }
            // A record that was changed in place: with a new tree, its layers' directories, another reference.
            let images = part.shared.layout.name("images");
            for name in files::list_records(part.shared.storage(), &images)? {
                swept.temporary += self.sweep_temporary(&images.join(name))?;
            }
            part.sweep_layer_parts()?;
            sweep_damaged::<RefRecord>(&part.shared, "refs")?;
        }
        self.shared.oldest_pin()?;
        sweep_damaged::<MountRecord>(&self.shared, "mounts")?;
        self.shared.hashed.sweep()?;
        self.shared.hashed_records.sweep()?;
        Ok(swept)
    }

    fn sweep_temporary(&self, folder: &Path) -> Result<u64, StoreError> {
        let mut count = 0;
        for name in files::list(self.shared.storage(), folder)? {
            if name.to_str().is_some_and(files::is_abandoned) {
                files::remove_all(self.shared.storage(), &folder.join(&name))?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// The round that a server runs every [`PROBE_INTERVAL`](crate::PROBE_INTERVAL): checks what an unclean stop left,
    /// syncs stored data to the disk, and frees room before a writer has to wait for it. The duration depends on the
    /// disk.
    pub fn maintain(&self) -> Result<(), StoreError> {
        let budget = &self.shared.budget;
        budget.refresh();
        let slack = slack(budget.limit());
        if budget.lacking(slack / 2) > 0
            && let Err(error) = self.shared.make_room(slack)
        {
            tracing::debug!(%error, "no room could be made");
        }
        self.shared.hashed.flush();
        self.shared.hashed_records.flush();
        self.settle(|_| {})?;
        self.shared.durability.sync()
    }

    /// The clean stop: syncs everything to the disk, so that the next start has nothing to check. No call that stores
    /// something may be running in this process.
    pub fn stop_clean(&self) -> Result<(), StoreError> {
        self.shared.budget.refresh();
        self.shared.durability.mark_clean()
    }

    /// Removes everything that no image refers to, and the least recently used images if the store is over its budget;
    /// then recounts.
    pub fn gc(&self) -> Result<Evicted, StoreError> {
        let _lock = self.shared.lock_eviction(COMMAND_WAIT, "collect unused content")?;
        self.recount()?;
        let evicted = self.evict_locked(self.shared.budget.lacking(0), true)?;
        self.recount()?;
        Ok(evicted)
    }

    /// Removes an image, its references, and the objects that no other image refers to; called on the whole store, from
    /// all tenants.
    pub fn remove_image(&self, manifest: &Digest) -> Result<Evicted, RemoveError> {
        let _lock = self.shared.lock_eviction(RECORD_WAIT, "remove the image")?;
        let bytes = self.drop_unmounted(manifest)?;
        let mut evicted = self.evict_locked(0, true)?;
        evicted.bytes += bytes;
        evicted.images.push(*manifest);
        Ok(evicted)
    }

    /// Whether a record of the image exists; called on the whole store, whether any tenant has one.
    pub fn has_image(&self, manifest: &Digest) -> Result<bool, StoreError> {
        for part in self.parts()? {
            if part.image(manifest)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes an image and its references, for replacement by another record. Its objects stay until they are evicted.
    pub fn remove_record(&self, manifest: &Digest) -> Result<(), RemoveError> {
        let _lock = self.shared.lock_eviction(RECORD_WAIT, "remove the image's record")?;
        self.drop_unmounted(manifest).map(drop)
    }

    fn drop_unmounted(&self, manifest: &Digest) -> Result<u64, RemoveError> {
        let (mounts, parts) = (self.all_mounts()?, self.parts()?);
        let is_here = |mount: &&Mount| parts.iter().any(|part| part.content(manifest) == mount.record.content());
        if let Some(mount) = mounts.iter().find(is_here) {
            return Err(RemoveError::Mounted(mount.record.mountpoint.clone()));
        }
        let mut bytes = 0;
        for part in &parts {
            bytes += part.drop_image(manifest)?;
        }
        Ok(bytes)
    }

    /// Removes everything that is neither mounted nor being imported.
    pub fn clear(&self) -> Result<Evicted, StoreError> {
        let _lock = self.shared.lock_eviction(COMMAND_WAIT, "clear the store")?;
        let mounted: HashSet<_> = self.all_mounts()?.iter().map(|mount| mount.record.content()).collect();
        let mut images = Vec::new();
        let mut bytes = 0;
        for part in self.whole().parts()? {
            let is_mounted = |record: &&ImageRecord| mounted.contains(&part.content(&record.manifest));
            for record in part.own_images()?.iter().filter(|record| !is_mounted(record)) {
                bytes += part.drop_image(&record.manifest)?;
                images.push(record.manifest);
            }
        }
        let mut evicted = self.evict_locked(0, true)?;
        evicted.bytes += bytes;
        evicted.images.extend(images);
        self.recount()?;
        Ok(evicted)
    }
}

/// Removes the records in a folder that cannot be read: a power cut left a part of them.
fn sweep_damaged<T: DeserializeOwned>(shared: &Shared, folder: &str) -> Result<(), StoreError> {
    let folder = shared.layout.name(folder);
    for name in files::list_records(shared.storage(), &folder)? {
        let path = folder.join(&name);
        let Some(text) = read_record(shared.storage(), &path)? else { continue };
        if let Err(error) = sealed::unseal::<T>(&text) {
            tracing::warn!(record = %path.display(), %error, "a record is not believed and is removed");
            files::unlink(shared.storage(), &path)?;
        }
    }
    Ok(())
}

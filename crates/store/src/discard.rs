//! Removes the objects of a failed import.

use std::collections::BTreeSet;

use tarpon_oci::Digest;

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::evict::Evicted;
use crate::files;
use crate::locks;
use crate::store::Store;

impl Store {
    /// Removes those of these objects that no image refers to. For an import that failed for good, while its pin lives.
    ///
    /// Does nothing while another import runs, which may rely on these objects, or while an eviction runs: then the next
    /// eviction removes them. Reads the lists of all images once, and examines no other object.
    pub fn discard(&self, objects: &[Digest]) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        let shared = &self.shared;
        // With the lock, no import starts unnoticed: a pin waits for it.
        let Some(_lock) = locks::try_lock(shared.storage(), &shared.eviction_lock())? else { return Ok(evicted) };
        if shared.live_pins()? > 1 {
            return Ok(evicted);
        }
        let mut unused: BTreeSet<Digest> = objects.iter().copied().collect();
        if !self.remove_used_from(&mut unused)? {
            return Ok(evicted);
        }
        for object in unused {
            let path = shared.layout.object(&object);
            let Ok(metadata) = shared.storage.metadata(&path) else { continue };
            files::unlink(shared.storage(), &path)?;
            let bytes = on_disk(metadata.size);
            shared.budget.add(-signed(bytes));
            evicted.objects += 1;
            evicted.bytes += bytes;
        }
        Ok(evicted)
    }
}

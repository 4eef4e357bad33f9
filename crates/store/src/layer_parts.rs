//! The received beginning of a streamed layer, for the next attempt: if this process is killed or the connection breaks,
//! the next attempt takes these bytes from here and requests the rest.
//!
//! The bytes prove nothing: the reader hashes the layer as a whole, as always, and drops them on a mismatch. They are
//! worth little, so they only use spare room, are evicted first, and are not synced. One process at a time holds a
//! layer's beginning (a lock on the file); another process works without it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tarpon_oci::{Blob, Digest};

use crate::StoreError;
use crate::budget::{Charge, on_disk, signed};
use crate::evict::{Evicted, slack};
use crate::file_lock::FileLock;
use crate::files::{self, DIR_MODE, FILE_MODE};
use crate::locks;
use crate::storage::Access;
use crate::store::{Shared, Store};

/// Smaller layers are streamed again from the start: on a link of 100 Mbit/s that takes under a second, not worth a file.
pub(crate) const RESUMED_LAYER_BYTES: u64 = 8 << 20;

/// A beginning unused for this time is removed when a server starts.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The beginning of a layer. After a drop, it stays for the next attempt.
#[derive(Debug)]
pub struct LayerPart {
    shared: Arc<Shared>,
    path: PathBuf,
    file: FileLock,
    held: u64,
    end: u64,
    charge: Charge,
    /// Nothing more is written.
    closed: bool,
}

impl Store {
    /// Opens the beginning of the layer, to be read and continued. `None`, so proceed without it: the layer is small,
    /// another process holds the beginning, or there is no spare room.
    pub fn layer_part(&self, layer: Blob) -> Option<LayerPart> {
        if layer.size < RESUMED_LAYER_BYTES {
            return None;
        }
        let path = self.shared.layout.layer_part(&layer.digest);
        let opened = self.shared.open_layer_part(&path, layer.size);
        opened.inspect_err(|error| tracing::debug!(%error, "the layer cannot be resumed")).ok().flatten()
    }

    /// Removes the beginnings that are not open.
    pub(crate) fn remove_layer_parts(&self, evicted: &mut Evicted) -> Result<(), StoreError> {
        self.remove_layer_parts_if(evicted, |_| true)
    }

    /// Removes those unused for too long.
    pub(crate) fn sweep_layer_parts(&self) -> Result<(), StoreError> {
        let now = self.shared.clock.wall();
        self.remove_layer_parts_if(&mut Evicted::default(), |modified| {
            now.duration_since(modified).is_ok_and(|age| age > FORGOTTEN)
        })
    }

    fn remove_layer_parts_if(
        &self,
        evicted: &mut Evicted,
        condition: impl Fn(std::time::SystemTime) -> bool,
    ) -> Result<(), StoreError> {
        let storage = self.shared.storage();
        let folder = self.shared.layout.layer_parts();
        for name in list(&self.shared, &folder)? {
            let path = folder.join(name);
            let Ok(file) = storage.open(&path, Access::Read) else { continue };
            let Ok(metadata) = storage.file_metadata(&file) else { continue };
            if !condition(metadata.modified) {
                continue;
            }
            let Ok(Some(_held)) = locks::hold(storage, file) else { continue };
            files::unlink(storage, &path)?;
            let bytes = on_disk(metadata.size);
            self.shared.budget.add(-signed(bytes));
            evicted.bytes += bytes;
        }
        Ok(())
    }
}

impl Shared {
    fn open_layer_part(self: &Arc<Self>, path: &Path, end: u64) -> io::Result<Option<LayerPart>> {
        if !self.may_hold_part() {
            return Ok(None);
        }
        match self.storage.create_dir(&self.layout.layer_parts(), DIR_MODE) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let file = self.storage.open(path, Access::OpenOrCreate(FILE_MODE))?;
        // Another process holds it, or has just removed it.
        let Some(file) = locks::hold(&*self.storage, file)? else { return Ok(None) };
        let metadata = self.storage.file_metadata(&file)?;
        if metadata.links == 0 {
            return Ok(None);
        }
        let charge = Charge::new(&self.budget);
        let shared = Arc::clone(self);
        let part = LayerPart { shared, path: path.to_owned(), file, held: metadata.size, end, charge, closed: false };
        if part.held > end {
            part.discard();
            return Ok(None);
        }
        Ok(Some(part))
    }

    /// Whether there is spare room, so that nothing is evicted for it.
    fn may_hold_part(&self) -> bool {
        self.health.may_write() && self.budget.lacking(slack(self.budget.limit())) == 0
    }

    /// Total size of all beginnings in bytes.
    pub(crate) fn layer_parts_size(&self) -> Result<u64, StoreError> {
        let folder = self.layout.layer_parts();
        let names = list(self, &folder)?;
        let sizes = names.iter().filter_map(|name| self.storage.metadata(&folder.join(name)).ok());
        Ok(sizes.fold(0, |sum, metadata| sum.saturating_add(on_disk(metadata.size))))
    }
}

/// The names in the folder that belong to a layer.
fn list(shared: &Shared, folder: &Path) -> Result<Vec<std::ffi::OsString>, StoreError> {
    if shared.storage.metadata(folder).is_err() {
        return Ok(Vec::new());
    }
    let mut names = files::list(shared.storage(), folder)?;
    names.retain(|name| name.to_str().is_some_and(|name| Digest::from_hex(name).is_ok()));
    Ok(names)
}

impl LayerPart {
    /// Number of local bytes of the layer, from the first on.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Fills as much of `buffer` as is local from `offset` on.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        files::read_full_at(self.shared.storage(), &self.file, buffer, offset)
    }

    /// Appends bytes. If some cannot be stored, neither these nor later ones are.
    pub fn append(&mut self, bytes: &[u8]) {
        let held = self.held.saturating_add(bytes.len() as u64);
        if self.closed || held > self.end {
            return;
        }
        if !self.shared.may_hold_part() {
            // More valuable data needs the room.
            self.closed = true;
            self.remove();
            return;
        }
        if let Err(error) = files::write_all_at(self.shared.storage(), &self.file, bytes, self.held) {
            self.shared.health.failed("writing a part of a layer", &error);
            self.closed = true;
            self.remove();
            return;
        }
        let grown = on_disk(held) - on_disk(self.held);
        self.charge.grow_to(self.charge.bytes() + grown);
        self.held = held;
    }

    /// Removes it: the layer is complete, or these bytes are wrong.
    pub fn discard(mut self) {
        // A closed one is already removed; the file that has its name now belongs to another process.
        if !std::mem::replace(&mut self.closed, true) {
            self.remove();
        }
    }

    fn remove(&mut self) {
        match files::unlink(self.shared.storage(), &self.path) {
            Ok(()) => {
                // The bytes written by this process were never settled with the budget; the rest were.
                let inherited = on_disk(self.held) - self.charge.bytes();
                self.shared.budget.add(-signed(inherited));
                self.charge = Charge::new(&self.shared.budget);
            }
            Err(error) => tracing::debug!(%error, "the next eviction will do it"),
        }
        self.held = 0;
    }
}

impl Drop for LayerPart {
    fn drop(&mut self) {
        if self.held == 0 && !self.closed {
            // It would be of no use.
            self.remove();
        }
        self.charge.keep();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::StoreConfig;

    const SIZE: u64 = RESUMED_LAYER_BYTES;

    fn layer() -> Blob {
        Blob { digest: Digest::of(b"a layer"), size: SIZE }
    }

    fn store(folder: &Path) -> Store {
        Store::open(folder, StoreConfig { budget: Some(1 << 30), ..StoreConfig::default() }).unwrap()
    }

    fn read(part: &LayerPart) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let length = part.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn what_came_of_a_layer_is_there_for_the_next_one_until_it_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let mut part = store(folder.path()).layer_part(layer()).unwrap();
        part.append(b"begin");
        drop(part);
        let store = store(folder.path());
        let mut part = store.layer_part(layer()).unwrap();
        assert_eq!((part.held(), read(&part)), (5, b"begin".to_vec()));
        assert!(store.layer_part(layer()).is_none(), "one at a time");
        part.append(b"ning");
        assert_eq!(store.usage().unwrap().partial_bytes, 4096);
        drop(part);
        let part = store.layer_part(layer()).unwrap();
        assert_eq!(read(&part), b"beginning");
        part.discard();
        assert_eq!(store.usage().unwrap().partial_bytes, 0);
        assert_eq!(store.layer_part(layer()).unwrap().held(), 0);
    }

    #[test]
    fn the_budget_is_the_same_after_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        for _ in 0..2 {
            let mut part = store.layer_part(layer()).unwrap();
            part.append(&[1; 10_000]);
            assert_eq!(store.estimated_usage(), 12_288);
            drop(part);
            let mut part = store.layer_part(layer()).unwrap();
            part.append(&[1; 10_000]);
            assert_eq!(store.estimated_usage(), 20_480);
            part.discard();
            assert_eq!(store.estimated_usage(), 0);
        }
    }

    #[test]
    fn small_layers_and_more_than_the_layer_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        assert!(store.layer_part(Blob { size: SIZE - 1, ..layer() }).is_none());
        let mut part = store.layer_part(layer()).unwrap();
        part.append(&vec![0; usize::try_from(SIZE).unwrap() + 1]);
        assert_eq!(part.held(), 0);
    }

    #[test]
    fn it_is_evicted_first_but_not_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let mut part = store.layer_part(layer()).unwrap();
        part.append(b"begin");
        store.gc().unwrap();
        assert_eq!(store.usage().unwrap().partial_bytes, 4096, "a process has it open");
        drop(part);
        store.sweep().unwrap();
        assert_eq!(store.usage().unwrap().partial_bytes, 4096, "not forgotten yet");
        store.gc().unwrap();
        assert_eq!(store.usage().unwrap().partial_bytes, 0);

        let mut part = store.layer_part(layer()).unwrap();
        part.append(b"begin");
        drop(part);
        let path = store.shared.layout.layer_part(&layer().digest);
        let old = std::time::SystemTime::now() - FORGOTTEN - Duration::from_secs(60);
        File::open(path).unwrap().set_modified(old).unwrap();
        store.sweep().unwrap();
        assert_eq!(store.usage().unwrap().partial_bytes, 0, "no process opened it again");
    }

    #[test]
    fn it_is_evicted_to_make_room_for_objects() {
        let folder = tempfile::tempdir().unwrap();
        let store =
            Store::open(folder.path(), StoreConfig { budget: Some(1 << 20), ..StoreConfig::default() }).unwrap();
        let mut part = store.layer_part(layer()).unwrap();
        for _ in 0..20 {
            part.append(&[0; 50_000]);
        }
        assert_eq!((part.held(), store.estimated_usage()), (0, 0));
    }
}

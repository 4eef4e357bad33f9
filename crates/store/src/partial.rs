//! [`Partial`]: an object of which some bytes are local.
//!
//! Each chunk list that is used for an object has its own partial, because its bytes were checked against that list
//! alone: two images that split an object differently, one of them perhaps wrongly, never write to the same file.
//!
//! On the disk it is only a sparse file, without a bitmap that could contradict it. Writes of this process are tracked in
//! memory. For the data of an earlier process, the file system reports where data *may* be, and the reader trusts it only
//! after its chunk digest matched.
//!
//! One process at a time works on a partial file (a lock on it); another process works without it. A small object needs
//! no file: it stays in memory until it is complete, unless its bytes are [to last](PartialObject::persist) longer than the process.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tarpon_blob::PartialObject;
use tarpon_oci::{Digest, Hasher, Verified};

use crate::StoreError;
use crate::budget::{Charge, on_disk, signed};
use crate::file_lock::FileLock;
use crate::files::{self, DIR_MODE, FILE_MODE, OBJECT_MODE, io_error};
use crate::intervals::Intervals;
use crate::locks;
use crate::objects::{Linked, SMALL_OBJECT};
use crate::storage::Access;
use crate::store::{PartialKey, Shared, SharedPartial};
use crate::writer::NewFile;

/// Attempts to open while another process removes the file.
const OPEN_TRIES: usize = 4;
/// Size of the map of partial objects at which unused entries are swept out.
const MAP_SWEEP: usize = 1024;

#[derive(Debug)]
struct Partial {
    shared: Arc<Shared>,
    object: Digest,
    list: Digest,
    size: u64,
    /// Writers and readers share it; publishing and persisting exclude them. Taken before the locks of the other fields.
    content: RwLock<Content>,
    /// What `content` holds. A writer keeps `content` until its bytes are in here.
    written: Mutex<Intervals>,
    charge: Mutex<Charge>,
}

#[derive(Debug)]
enum Content {
    Memory(Mutex<Vec<u8>>),
    /// `inherited`: an earlier process may have written to it.
    File {
        file: FileLock,
        inherited: bool,
    },
    /// It is in `objects/` now and must not be written any more. Not locked: others may claim it.
    Published(FileLock),
}

/// Opens the partial object, shared within this process.
pub(crate) fn open(
    shared: &Arc<Shared>,
    object: &Digest,
    list: &Digest,
    size: u64,
) -> Result<Arc<dyn PartialObject>, StoreError> {
    let key = (*object, *list);
    let shared_one = |partials: &HashMap<PartialKey, SharedPartial>| {
        partials.get(&key).filter(|shared| shared.size == size)?.partial.upgrade()
    };
    if let Some(partial) = shared_one(&shared.partials.lock()) {
        return Ok(partial);
    }
    shared.make_room(size.min(SMALL_OBJECT))?;
    let mut partials = shared.partials.lock();
    if let Some(partial) = shared_one(&partials) {
        return Ok(partial);
    }
    let content = begin(shared, &key, size)?;
    if partials.len() >= MAP_SWEEP {
        partials.retain(|_, shared| shared.partial.strong_count() > 0);
    }
    let partial: Arc<dyn PartialObject> = Arc::new(Partial::new(shared, key, size, content));
    partials.insert(key, SharedPartial { size, partial: Arc::downgrade(&partial) });
    Ok(partial)
}

/// Where the bytes of a partial object go.
fn begin(shared: &Shared, key: &PartialKey, size: u64) -> Result<Content, StoreError> {
    if size > SMALL_OBJECT {
        return claim_file(shared, key, size);
    }
    if has_file(shared, key)? {
        match claim_file(shared, key, size) {
            // Another process holds it.
            Err(StoreError::Full) => {}
            claimed => return claimed,
        }
    }
    let size = usize::try_from(size).map_err(|_| StoreError::Full)?;
    Ok(Content::Memory(Mutex::new(vec![0; size])))
}

/// Whether an earlier process left the object a file.
fn has_file(shared: &Shared, (object, list): &PartialKey) -> Result<bool, StoreError> {
    let path = shared.layout.partial(object, list);
    match shared.storage().metadata(&path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(shared.bypass("examining", &path)(error)),
    }
}

/// Opens and locks the sparse file. If another process holds it, the caller works without it.
fn claim_file(shared: &Shared, (object, list): &PartialKey, size: u64) -> Result<Content, StoreError> {
    let storage = shared.storage();
    let path = shared.layout.partial(object, list);
    let bypass = |doing: &str, error: io::Error| shared.bypass(doing, &path)(error);
    for _ in 0..OPEN_TRIES {
        let file = match storage.open(&path, Access::OpenOrCreate(FILE_MODE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&path);
                files::create_dir(storage, parent, DIR_MODE).map_err(|error| match error {
                    StoreError::Io { doing, error } => bypass(&doing, error),
                    error => error,
                })?;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // A process died between making it read-only and linking it in. It is not worth more than a new one.
                storage.unlink(&path).map_err(|error| bypass("removing", error))?;
                continue;
            }
            Err(error) => return Err(bypass("opening", error)),
        };
        let Some(file) = locks::hold(storage, file).map_err(|error| bypass("locking", error))? else {
            return Err(StoreError::Full);
        };
        let metadata = storage.file_metadata(&file).map_err(|error| bypass("examining", error))?;
        if metadata.links == 0 {
            continue;
        }
        if metadata.links > 1 {
            // A process died after linking it in: it is an object, and must not be written any more.
            storage.unlink(&path).map_err(|error| bypass("removing", error))?;
            continue;
        }
        let inherited = metadata.size > 0;
        if metadata.size != size {
            storage.set_len(&file, size).map_err(|error| bypass("sizing", error))?;
        }
        return Ok(Content::File { file, inherited });
    }
    Err(StoreError::Full)
}

impl Partial {
    fn new(shared: &Arc<Shared>, (object, list): PartialKey, size: u64, content: Content) -> Self {
        Self {
            shared: Arc::clone(shared),
            object,
            list,
            size,
            content: RwLock::new(content),
            written: Mutex::default(),
            charge: Mutex::new(Charge::new(&shared.budget)),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.shared.layout.partial(&self.object, &self.list)
    }

    fn read_file(&self, file: &File, buffer: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let count = files::read_full_at(self.shared.storage(), file, buffer, offset);
        let count = count.map_err(io_error("reading", &self.path()))?;
        buffer.get_mut(count..).unwrap_or_default().fill(0);
        Ok(())
    }

    /// The range `offset..offset + length` as positions in memory, if it lies in the object.
    fn range(&self, offset: u64, length: usize) -> Result<std::ops::Range<usize>, StoreError> {
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.size);
        let range = end.and_then(|end| Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?));
        range.ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "beyond the end of the object");
            io_error("accessing", &self.path())(error)
        })
    }

    fn hash(&self, content: &Content) -> Result<Result<(), StoreError>, StoreError> {
        let mut hasher = Hasher::new();
        let length = match content {
            Content::Memory(bytes) => {
                let bytes = bytes.lock();
                hasher.update(&bytes);
                bytes.len() as u64
            }
            Content::File { file, .. } | Content::Published(file) => {
                let hashed = files::hash_file(self.shared.storage(), file, &mut hasher);
                hashed.map_err(io_error("reading", &self.path()))?
            }
        };
        let sound = length == self.size && Verified::check_stream(&self.object, hasher).is_ok();
        Ok(if sound { Ok(()) } else { Err(StoreError::Corrupt(self.object)) })
    }

    /// Discards all bytes. The object stays usable, as an empty one.
    fn reset(&self, content: &mut Content) -> Result<(), StoreError> {
        self.written.lock().clear();
        match content {
            Content::Memory(bytes) => bytes.lock().fill(0),
            Content::File { file, inherited } => {
                let storage = self.shared.storage();
                let cut = storage.set_len(file, 0).and_then(|()| storage.set_len(file, self.size));
                cut.map_err(io_error("emptying", &self.path()))?;
                *inherited = false;
                *self.charge.lock() = Charge::new(&self.shared.budget);
            }
            Content::Published(_) => {}
        }
        Ok(())
    }

    fn publish_memory(&self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.shared.claim_existing(&self.object)? {
            return Ok(());
        }
        let file = NewFile::create(&self.shared)?;
        file.write_at(bytes, 0)?;
        if self.shared.link_in(&self.object, |path| file.link(path))? == Linked::New {
            self.shared.budget.add(signed(on_disk(self.size)));
            file.became_object(&self.object);
        }
        Ok(())
    }

    fn publish_file(&self, file: &File) -> Result<(), StoreError> {
        let storage = self.shared.storage();
        let from = self.path();
        storage.set_mode(file, OBJECT_MODE).map_err(self.shared.bypass("publishing", &from))?;
        // The age of an object starts when it is complete.
        storage.set_modified(&from, None).map_err(self.shared.bypass("publishing", &from))?;
        let linked = self.shared.link_in(&self.object, |path| storage.link(&from, path));
        let linked = linked.inspect_err(|_| {
            let _ = storage.set_mode(file, FILE_MODE);
        })?;
        let mut charge = self.charge.lock();
        if linked == Linked::New {
            charge.grow_to(on_disk(self.size));
            charge.keep();
        }
        *charge = Charge::new(&self.shared.budget);
        // It is an object now regardless of its old name, which `sweep` would remove.
        remove_quietly(&self.shared, &from);
        if linked == Linked::New {
            self.shared.note_hashed(&self.object, file);
        }
        Ok(())
    }
}

impl PartialObject for Partial {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let range = self.range(offset, buffer.len())?;
        match &*self.content.read() {
            Content::Memory(bytes) => {
                let bytes = bytes.lock();
                buffer.copy_from_slice(bytes.get(range).unwrap_or_default());
                Ok(())
            }
            Content::File { file, .. } | Content::Published(file) => self.read_file(file, buffer, offset),
        }
    }

    fn may_hold(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length).min(self.size);
        match &*self.content.read() {
            Content::Published(_) => true,
            _ if self.written.lock().touches(offset, end) => true,
            Content::Memory(_) | Content::File { inherited: false, .. } => false,
            Content::File { file, .. } => match self.shared.storage.next_data(file, offset) {
                Ok(data) => data.is_some_and(|data| data < end),
                // The file system cannot report it: assume data.
                Err(_) => true,
            },
        }
    }

    fn write_at(&self, bytes: &Verified<Bytes>, offset: u64) -> Result<(), StoreError> {
        self.write(bytes, offset)
    }

    fn spool_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        self.write(bytes, offset)
    }

    fn persist(&self) -> Result<(), StoreError> {
        let mut content = self.content.write();
        let Content::Memory(bytes) = &*content else { return Ok(()) };
        // A file beside a complete object would be in the way only.
        if self.written.lock().is_empty() || self.shared.claim_existing(&self.object)? {
            return Ok(());
        }
        self.shared.make_room(self.size)?;
        let claimed = claim_file(&self.shared, &(self.object, self.list), self.size)?;
        if let Content::File { file, inherited } = &claimed {
            let written = self.write_out(&bytes.lock(), file);
            written.inspect_err(|_| {
                // Still locked. What an earlier process left in it is worth as much as before.
                if !inherited {
                    remove_quietly(&self.shared, &self.path());
                }
            })?;
        }
        *content = claimed;
        Ok(())
    }

    fn publish(&self) -> Result<(), StoreError> {
        let mut content = self.content.write();
        if matches!(*content, Content::Published(_)) {
            return Ok(());
        }
        if let Err(corrupt) = self.hash(&content)? {
            self.reset(&mut content)?;
            return Err(corrupt);
        }
        match std::mem::replace(&mut *content, Content::Memory(Mutex::default())) {
            Content::File { mut file, inherited } => match self.publish_file(&file) {
                Ok(()) => {
                    file.unlock();
                    *content = Content::Published(file);
                }
                Err(error) => {
                    *content = Content::File { file, inherited };
                    return Err(error);
                }
            },
            Content::Memory(bytes) => {
                let published = self.publish_memory(&bytes.lock());
                *content = Content::Memory(bytes);
                return published;
            }
            published @ Content::Published(_) => *content = published,
        }
        Ok(())
    }
}

impl Partial {
    /// Writes the bytes that were in memory to the file.
    fn write_out(&self, bytes: &[u8], file: &File) -> Result<(), StoreError> {
        for range in self.written.lock().ranges() {
            let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            let written = bytes.get(self.range(range.start, length)?).unwrap_or_default();
            let outcome = files::write_all_at(self.shared.storage(), file, written, range.start);
            outcome.map_err(self.shared.bypass("writing", &self.path()))?;
        }
        self.charge.lock().grow_to(on_disk(self.size));
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let range = self.range(offset, bytes.len())?;
        let end = offset + bytes.len() as u64;
        // Kept until the range is in `written`: `persist` writes nothing else to the file.
        let content = self.content.read();
        match &*content {
            Content::Memory(content) => {
                if let Some(target) = content.lock().get_mut(range) {
                    target.copy_from_slice(bytes);
                }
            }
            Content::File { file, .. } => {
                self.shared.make_room(bytes.len() as u64)?;
                let outcome = files::write_all_at(self.shared.storage(), file, bytes, offset);
                outcome.map_err(self.shared.bypass("writing", &self.path()))?;
                let mut charge = self.charge.lock();
                let total = charge.bytes() + bytes.len() as u64;
                charge.grow_to(total);
            }
            // Late writers deliver bytes that are already local.
            Content::Published(_) => return Ok(()),
        }
        self.written.lock().insert(offset, end);
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let Content::File { inherited, .. } = self.content.get_mut() else { return };
        if *inherited || !self.written.get_mut().is_empty() {
            // The bytes stay for the next process.
            self.charge.get_mut().keep();
        } else {
            // Nothing was written; the lock is still held, so no other process wrote either.
            remove_quietly(&self.shared, &self.shared.layout.partial(&self.object, &self.list));
        }
    }
}

fn remove_quietly(shared: &Shared, path: &Path) {
    if let Err(error) = shared.storage.unlink(path) {
        tracing::debug!(%error, "cannot remove {}", path.display());
    }
}

#[cfg(test)]
mod tests;

//! [`MemoryStore`]: a store in memory that can be full, fail, forget and rot.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::ThreadId;

use bytes::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use tarpon_blob::{ObjectStore, ObjectWriter, Opened, PartialObject, StoreError};
use tarpon_oci::{Digest, Hasher, Verified};

use super::blobs::lock;

/// The error of a refused write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No room.
    Full,
    /// The disk fails.
    Io,
}

/// Objects in memory. Clones are the same store.
#[derive(Clone, Default)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    objects: Mutex<HashMap<Digest, Bytes>>,
    /// Keyed by object and chunk list.
    partials: Mutex<HashMap<(Digest, Digest), Arc<Partial>>>,
    refusal: Mutex<Option<Refusal>>,
    /// Whether parts are accepted only as long as they need not last.
    forgets_parts: Mutex<bool>,
    /// Whether publishing is blocked.
    held: Mutex<bool>,
    released: Condvar,
    /// Objects not hashed since the last [`MemoryStore::reboot`].
    unchecked: Mutex<HashSet<Digest>>,
    /// Threads that hashed an object, in order.
    hashed_by: Mutex<Vec<ThreadId>>,
    hashing_is_held: Mutex<bool>,
    hashing_released: Condvar,
}

/// Hashing does not finish before this is dropped.
pub struct HeldHashing(Arc<Inner>);

impl Drop for HeldHashing {
    fn drop(&mut self) {
        *lock(&self.0.hashing_is_held) = false;
        self.0.hashing_released.notify_all();
    }
}

impl MemoryStore {
    /// From now on every write fails with `refusal`.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        *lock(&self.inner.refusal) = refusal;
    }

    /// While `forget`, parts of objects cannot be made to last, nor complete ones published, as if there were no room for files.
    pub fn forget_parts(&self, forget: bool) {
        *lock(&self.inner.forgets_parts) = forget;
    }

    /// While `hold`, partial objects are not published; publishing calls wait.
    pub fn hold_publishing(&self, hold: bool) {
        *lock(&self.inner.held) = hold;
        self.inner.released.notify_all();
    }

    /// The complete object.
    pub fn object(&self, object: &Digest) -> Option<Bytes> {
        lock(&self.inner.objects).get(object).cloned()
    }

    /// Number of complete objects.
    pub fn complete(&self) -> usize {
        lock(&self.inner.objects).len()
    }

    /// The names of the complete objects and their bytes.
    pub fn objects(&self) -> Vec<(Digest, Bytes)> {
        lock(&self.inner.objects).iter().map(|(name, bytes)| (*name, bytes.clone())).collect()
    }

    /// Whether the object need not be hashed before use.
    pub fn is_checked(&self, object: &Digest) -> bool {
        !lock(&self.inner.unchecked).contains(object)
    }

    /// The partial objects: name, bytes, and which of them were written.
    pub fn partials(&self) -> Vec<(Digest, Vec<u8>, Vec<bool>)> {
        let partials = lock(&self.inner.partials);
        let copy = |((name, _), partial): (&(Digest, Digest), &Arc<Partial>)| {
            (*name, lock(&partial.bytes).clone(), lock(&partial.written).clone())
        };
        partials.iter().map(copy).collect()
    }

    /// Removes the object, complete and partial, as if there had been no room for it.
    pub fn evict(&self, object: &Digest) {
        lock(&self.inner.objects).remove(object);
        lock(&self.inner.partials).retain(|(of, _), _| of != object);
    }

    /// Requires hashing of all objects before use, as after a boot.
    pub fn reboot(&self) {
        *lock(&self.inner.unchecked) = lock(&self.inner.objects).keys().copied().collect();
    }

    /// Hashing does not finish while this is held.
    pub fn hold_hashing(&self) -> HeldHashing {
        *lock(&self.inner.hashing_is_held) = true;
        HeldHashing(self.inner.clone())
    }

    /// The threads that hashed an object, one entry per hash, whether finished or not.
    pub fn hashed_by(&self) -> Vec<ThreadId> {
        lock(&self.inner.hashed_by).clone()
    }

    /// Inverts every byte of a complete object.
    pub fn damage(&self, object: &Digest) {
        if let Some(bytes) = lock(&self.inner.objects).get_mut(object) {
            *bytes = bytes.iter().map(|byte| !*byte).collect();
        }
    }

    /// Inverts every byte that was written of partial objects, like a decaying disk.
    pub fn rot(&self) {
        for partial in lock(&self.inner.partials).values() {
            let written = lock(&partial.written);
            for (byte, _) in lock(&partial.bytes).iter_mut().zip(&*written).filter(|(_, written)| **written) {
                *byte = !*byte;
            }
        }
    }
}

impl MemoryStore {
    fn hash(&self, object: &Digest) {
        // The entry is made under the lock: a thread that sees it can release this hash only after the wait has begun.
        let held = lock(&self.inner.hashing_is_held);
        lock(&self.inner.hashed_by).push(std::thread::current().id());
        let released = self.inner.hashing_released.wait_while(held, |is_held| *is_held);
        drop(released.expect("no test panics while it holds the lock"));
        let mut objects = lock(&self.inner.objects);
        if objects.get(object).is_some_and(|bytes| Digest::of(bytes) != *object) {
            objects.remove(object);
        }
        lock(&self.inner.unchecked).remove(object);
    }
}

impl Inner {
    fn accept(&self) -> Result<(), StoreError> {
        match *lock(&self.refusal) {
            None => Ok(()),
            Some(Refusal::Full) => Err(StoreError::Full),
            Some(Refusal::Io) => Err(StoreError::Io { doing: "writing".into(), error: io::ErrorKind::Other.into() }),
        }
    }

    fn accept_to_last(&self) -> Result<(), StoreError> {
        if *lock(&self.forgets_parts) { Err(StoreError::Full) } else { self.accept() }
    }
}

impl ObjectStore for MemoryStore {
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError> {
        if lock(&self.inner.unchecked).contains(object) {
            self.hash(object);
        }
        let Some(bytes) = self.object(object) else { return Ok(None) };
        let failed = |error| StoreError::Io { doing: "opening".into(), error };
        // In memory: the simulation opens thousands of them.
        let file = memfd_create("object", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let mut file = File::from(file);
        file.write_all(&bytes).map_err(failed)?;
        Ok(Some(file))
    }

    fn open_checked(&self, object: &Digest) -> Result<Opened<File>, StoreError> {
        match self.object(object) {
            Some(bytes) if lock(&self.inner.unchecked).contains(object) => Ok(Opened::Unchecked(bytes.len() as u64)),
            _ => Ok(self.open(object)?.map_or(Opened::Absent, Opened::Sound)),
        }
    }

    fn contains(&self, object: &Digest) -> bool {
        lock(&self.inner.objects).contains_key(object)
    }

    fn has_room(&self, _bytes: u64) -> bool {
        lock(&self.inner.refusal).is_none()
    }

    fn partial(&self, object: &Digest, list: &Digest, size: u64) -> Result<Arc<dyn PartialObject>, StoreError> {
        self.inner.accept()?;
        let mut partials = lock(&self.inner.partials);
        let new = || {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let inner = Arc::downgrade(&self.inner);
            let (object, list) = (*object, *list);
            Arc::new(Partial { inner, object, list, bytes: vec![0; size].into(), written: vec![false; size].into() })
        };
        Ok(partials.entry((*object, *list)).or_insert_with(new).clone())
    }

    fn writer(&self, _size_hint: u64) -> Result<Box<dyn ObjectWriter>, StoreError> {
        self.inner.accept()?;
        Ok(Box::new(Writer { inner: self.inner.clone(), bytes: Vec::new() }))
    }
}

struct Partial {
    /// Weak, because it is one of the partial objects of the store.
    inner: Weak<Inner>,
    object: Digest,
    list: Digest,
    bytes: Mutex<Vec<u8>>,
    written: Mutex<Vec<bool>>,
}

impl Partial {
    fn store(&self) -> Arc<Inner> {
        self.inner.upgrade().expect("a store outlives those who use it")
    }
}

impl PartialObject for Partial {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        buffer.copy_from_slice(&lock(&self.bytes)[start..start + buffer.len()]);
        Ok(())
    }

    fn may_hold(&self, offset: u64, length: u64) -> bool {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let written = lock(&self.written);
        let end = written.len().min(start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)));
        written[start..end].contains(&true)
    }

    fn write_at(&self, bytes: &Verified<Bytes>, offset: u64) -> Result<(), StoreError> {
        self.spool_at(bytes, offset)
    }

    fn spool_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        self.store().accept()?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        lock(&self.bytes)[start..start + bytes.len()].copy_from_slice(bytes);
        lock(&self.written)[start..start + bytes.len()].fill(true);
        Ok(())
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.store().accept_to_last()
    }

    fn publish(&self) -> Result<(), StoreError> {
        let store = self.store();
        drop(store.released.wait_while(lock(&store.held), |held| *held));
        store.accept_to_last()?;
        let bytes = Bytes::from(lock(&self.bytes).clone());
        if Digest::of(&bytes) != self.object {
            lock(&self.written).fill(false);
            return Err(StoreError::Corrupt(self.object));
        }
        lock(&store.objects).insert(self.object, bytes);
        lock(&store.partials).remove(&(self.object, self.list));
        Ok(())
    }
}

struct Writer {
    inner: Arc<Inner>,
    bytes: Vec<u8>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.accept().map_err(io::Error::other)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ObjectWriter for Writer {
    fn publish(self: Box<Self>, proof: Verified<()>) -> Result<(), StoreError> {
        self.inner.accept()?;
        let mut hasher = Hasher::new();
        hasher.update(&self.bytes);
        assert!(Verified::check_stream(proof.digest(), hasher).is_ok(), "published under the name of other bytes");
        lock(&self.inner.objects).insert(*proof.digest(), self.bytes.into());
        Ok(())
    }
}

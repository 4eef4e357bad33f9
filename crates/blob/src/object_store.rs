//! [`ObjectStore`]: where the objects of this host are kept.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tarpon_oci::{Digest, Verified};

/// The local store, as fetching and importing use it. Calls block on the local disk only, never on the network.
pub trait ObjectStore: Send + Sync + 'static {
    /// The complete, verified object, opened for reading; `None` if it is absent or incomplete. An unchecked object is hashed
    /// first, which takes as long as reading all of it: never call this on a thread that serves other requests.
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError>;

    /// As [`ObjectStore::open`], but hashes nothing.
    fn open_checked(&self, object: &Digest) -> Result<Opened<File>, StoreError>;

    /// Whether a complete object of this name exists. Cheaper than [`ObjectStore::open`], and checks nothing.
    fn contains(&self, object: &Digest) -> bool;

    /// Whether `bytes` fit without an eviction, which may take seconds.
    fn has_room(&self, bytes: u64) -> bool;

    /// The partial file of an object for one chunk list: `list` is the digest of the chunks' sizes and digests. All callers
    /// with the same object and list share it; callers with another list get another one, because the bytes are only as
    /// trustworthy as the list that they were checked against. [`StoreError::Full`] means: continue without keeping anything.
    fn partial(&self, object: &Digest, list: &Digest, size: u64) -> Result<Arc<dyn PartialObject>, StoreError>;

    /// A new object that will be written from its first byte to its last.
    fn writer(&self, size_hint: u64) -> Result<Box<dyn ObjectWriter>, StoreError>;
}

/// The state of an object in the store.
#[derive(Debug)]
pub enum Opened<F> {
    /// Nothing, or not all of it.
    Absent,
    /// All of it, of this size in bytes, to be hashed before use: [`ObjectStore::open`] does it.
    Unchecked(u64),
    /// All of it, verified.
    Sound(F),
}

impl<F> Opened<F> {
    /// Applies `change` to the opened object.
    pub fn map<T>(self, change: impl FnOnce(F) -> T) -> Opened<T> {
        match self {
            Self::Sound(file) => Opened::Sound(change(file)),
            Self::Unchecked(size) => Opened::Unchecked(size),
            Self::Absent => Opened::Absent,
        }
    }

    /// The opened object, if it is verified.
    pub fn sound(self) -> Option<F> {
        match self {
            Self::Sound(file) => Some(file),
            Self::Absent | Self::Unchecked(_) => None,
        }
    }
}

/// An object that is filled in any order. It does not track which bytes are valid: its user checks chunk digests.
pub trait PartialObject: Send + Sync {
    /// Fills `buffer` from `offset`. Bytes that were never written read as zeros.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError>;

    /// Whether bytes may have been written anywhere in `offset..offset + length`, also by an earlier process.
    /// `false` is certain; after `true`, check the digest before you use the bytes.
    fn may_hold(&self, offset: u64, length: u64) -> bool;

    /// Keeps verified bytes at `offset`.
    fn write_at(&self, bytes: &Verified<bytes::Bytes>, offset: u64) -> Result<(), StoreError>;

    /// Writes unchecked bytes at `offset`: a part of a chunk that is too large to be checked in memory. The caller counts the
    /// chunk as present once its digest has matched; until then no reader may use anything in the chunk.
    fn spool_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError>;

    /// Keeps what was written for later processes. Without this call, a store may lose the bytes of a small object that is never complete
    /// with this process.
    fn persist(&self) -> Result<(), StoreError>;

    /// Call it when all bytes are written: hashes the whole object and links it in if the digest matches. On a mismatch the
    /// bytes are deleted and [`StoreError::Corrupt`] is returned.
    fn publish(&self) -> Result<(), StoreError>;
}

/// An object that is written sequentially. Dropped without [`ObjectWriter::publish`], it leaves nothing behind.
pub trait ObjectWriter: io::Write + Send {
    /// Links the written bytes in under the digest of `proof`, or drops them if the object exists already.
    fn publish(self: Box<Self>, proof: Verified<()>) -> Result<(), StoreError>;
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No room: the budget or the free-space floor is reached, or the disk is full.
    #[error("the store has no room left")]
    Full,
    /// The content does not match its digest.
    #[error("object {0} in the store is corrupt")]
    Corrupt(Digest),
    /// The disk failed.
    #[error("{doing}: {error}")]
    Io {
        /// The operation and the file.
        doing: String,
        /// The cause.
        error: io::Error,
    },
    /// Another process holds a lock of the store for longer than any use of it takes.
    #[error(
        "{doing}: another tarpon process or task has held {} for more than {} s; if a process was stopped, continue it or end it",
        lock.display(),
        waited.as_secs()
    )]
    Busy {
        /// What was being done.
        doing: String,
        /// The file that is locked.
        lock: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
}

//! Where objects stay on this host.

use std::fs::File;
use std::io;
use std::sync::Arc;

use tarpon_oci::{Digest, Verified};

/// The local store, as fetching and importing see it. Calls block on the local disk only, never on the network.
pub trait ObjectStore: Send + Sync + 'static {
    /// The complete, verified object, opened for reading; `None` if it is not (wholly) here. Hashes it if that must be done first: then
    /// it takes as long as reading the whole, so never call it on a thread that others wait for.
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError>;

    /// As [`ObjectStore::open`], but hashes nothing.
    fn open_checked(&self, object: &Digest) -> Result<Opened<File>, StoreError>;

    /// Whether the complete object is here, as far as a look at its name tells: cheaper than [`ObjectStore::open`].
    fn contains(&self, object: &Digest) -> bool;

    /// Whether so many bytes can be kept without making room for them first, which may take seconds.
    fn has_room(&self, bytes: u64) -> bool;

    /// The object of which some bytes may be here already, as somebody splits it into chunks: `list` stands for the sizes
    /// and digests of those. All callers of one object and list get the same one, and whoever splits the object otherwise
    /// never sees it: nothing of a partial object is worth more than the list that its bytes were checked against.
    /// [`StoreError::Full`] means bypass: go on without keeping anything.
    fn partial(&self, object: &Digest, list: &Digest, size: u64) -> Result<Arc<dyn PartialObject>, StoreError>;

    /// A new object that will be written from its first byte to its last.
    fn writer(&self, size_hint: u64) -> Result<Box<dyn ObjectWriter>, StoreError>;
}

/// What the store has of an object.
#[derive(Debug)]
pub enum Opened<F> {
    /// Nothing, or not all of it.
    Absent,
    /// All of it, so many bytes, which must be hashed before they are used: [`ObjectStore::open`] does it.
    Unchecked(u64),
    /// All of it, verified.
    Sound(F),
}

impl<F> Opened<F> {
    /// With `change` of what was opened.
    pub fn map<T>(self, change: impl FnOnce(F) -> T) -> Opened<T> {
        match self {
            Self::Sound(file) => Opened::Sound(change(file)),
            Self::Unchecked(size) => Opened::Unchecked(size),
            Self::Absent => Opened::Absent,
        }
    }

    /// What was opened.
    pub fn sound(self) -> Option<F> {
        match self {
            Self::Sound(file) => Some(file),
            Self::Absent | Self::Unchecked(_) => None,
        }
    }
}

/// An object that is filled in any order. It does not know what it holds: its user decides by chunk digests.
pub trait PartialObject: Send + Sync {
    /// Fills `buffer` from `offset`. Bytes that were never written read as zeros.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StoreError>;

    /// Whether bytes may have been written anywhere in `offset..offset + length`, also by an earlier process.
    /// `false` is certain; `true` must be checked by digest before the bytes are used.
    fn may_hold(&self, offset: u64, length: u64) -> bool;

    /// Keeps verified bytes at `offset`.
    fn write_at(&self, bytes: &Verified<bytes::Bytes>, offset: u64) -> Result<(), StoreError>;

    /// Puts bytes down at `offset` that nobody has checked yet: a part of a chunk that is too large to be checked in memory.
    /// They prove nothing; once the chunk's digest has matched, its user counts the chunk as present. Before that, nobody
    /// else may rely on anything in the chunk.
    fn spool_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError>;

    /// All bytes are here: hashes the whole, and links the object in if it is what its name says. On a mismatch the
    /// bytes are thrown away and [`StoreError::Corrupt`] is returned.
    fn publish(&self) -> Result<(), StoreError>;
}

/// An object written front to back. Dropped without [`ObjectWriter::publish`], it leaves nothing behind.
pub trait ObjectWriter: io::Write + Send {
    /// The bytes that were written hash to `proof`: links them in under that name (or drops them, if the
    /// object is already here).
    fn publish(self: Box<Self>, proof: Verified<()>) -> Result<(), StoreError>;
}

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No room: the budget or the free-space floor is reached, or the disk is full.
    #[error("the store has no room left")]
    Full,
    /// What was kept is not what its name says.
    #[error("object {0} in the store is corrupt")]
    Corrupt(Digest),
    /// The disk failed.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done, to which file.
        doing: String,
        /// How it failed.
        error: io::Error,
    },
}

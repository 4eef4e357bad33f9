//! Complete objects that are kept open, so that a read of a local object is one `pread`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_blob::{ObjectStore, Opened, StoreError};
use tarpon_layer::ObjectId;

use crate::content::ObjectBytes;
use crate::error::ReadError;
use crate::lru::Lru;

/// An open complete object of the store.
#[derive(Debug, Clone)]
pub struct LocalObject {
    /// Open for reading only.
    pub file: Arc<File>,
    /// Its size in bytes.
    pub size: u64,
}

/// A bounded number of open objects. One that changed since it was opened is damaged, and is opened from the store again.
pub(crate) struct OpenObjects {
    files: Mutex<Lru<ObjectId, (LocalObject, Stamp)>>,
}

/// Values that change with every change of a file: its times, and the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    changed: (i64, i64),
    modified: (i64, i64),
    size: u64,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (changed, modified) =
            ((metadata.ctime(), metadata.ctime_nsec()), (metadata.mtime(), metadata.mtime_nsec()));
        Ok(Self { changed, modified, size: metadata.len() })
    }
}

impl OpenObjects {
    pub(crate) fn new(limit: u64) -> Self {
        Self { files: Mutex::new(Lru::new(limit)) }
    }

    /// The complete object, if the store has it. Hashes nothing.
    pub(crate) fn open(&self, store: &dyn ObjectStore, object: &ObjectId) -> Result<Opened<LocalObject>, StoreError> {
        let known = self.files.lock().get(object).cloned();
        if let Some((open, stamp)) = known
            && Stamp::of(&open.file).is_ok_and(|now| now == stamp)
        {
            return Ok(Opened::Sound(open));
        }
        match store.open_checked(object)? {
            Opened::Sound(file) => Ok(Opened::Sound(self.keep(object, file)?)),
            Opened::Unchecked(size) => Ok(Opened::Unchecked(size)),
            Opened::Absent => {
                self.forget(object);
                Ok(Opened::Absent)
            }
        }
    }

    /// Lets the store hash the object, and keeps it open if it is valid. Blocks for as long as reading all of it takes.
    pub(crate) fn check(&self, store: &dyn ObjectStore, object: &ObjectId) -> Result<(), StoreError> {
        match store.open(object)? {
            Some(file) => self.keep(object, file).map(drop),
            None => {
                self.forget(object);
                Ok(())
            }
        }
    }

    fn keep(&self, object: &ObjectId, file: File) -> Result<LocalObject, StoreError> {
        let stamp = Stamp::of(&file).map_err(|error| StoreError::Io { doing: format!("opening {object}"), error })?;
        let open = LocalObject { file: Arc::new(file), size: stamp.size };
        self.files.lock().insert(*object, (open.clone(), stamp), 1);
        Ok(open)
    }

    pub(crate) fn forget(&self, object: &ObjectId) {
        self.files.lock().remove(object);
    }
}

impl LocalObject {
    /// The bytes from `offset`, at most `length`, fewer only at the end of the object.
    pub(crate) fn read(&self, object: &ObjectId, offset: u64, length: u64) -> Result<ObjectBytes, ReadError> {
        let length = length.min(self.size.saturating_sub(offset));
        let failed = |reason: String| ReadError::Local { object: *object, reason: reason.into() };
        let mut bytes = vec![0; usize::try_from(length).map_err(|error| failed(error.to_string()))?];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| failed(error.to_string()))?;
        Ok(ObjectBytes::of_store(bytes))
    }
}

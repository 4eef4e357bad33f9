//! Complete objects, held open: what makes a read of a local object one `pread`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_layer::ObjectId;

use crate::content::ObjectBytes;
use crate::error::ReadError;
use crate::lru::Lru;
use crate::{ObjectStore, StoreError};

/// A complete object of the store, open.
#[derive(Debug, Clone)]
pub struct LocalObject {
    /// For reading alone.
    pub file: Arc<File>,
    /// Its size in bytes.
    pub size: u64,
}

/// A bounded number of open objects.
pub(crate) struct OpenObjects {
    files: Mutex<Lru<ObjectId, LocalObject>>,
}

impl OpenObjects {
    pub(crate) fn new(limit: u64) -> Self {
        Self { files: Mutex::new(Lru::new(limit)) }
    }

    /// The complete object, if the store has it.
    pub(crate) fn open(&self, store: &dyn ObjectStore, object: &ObjectId) -> Result<Option<LocalObject>, StoreError> {
        if let Some(open) = self.files.lock().get(object) {
            return Ok(Some(open.clone()));
        }
        let Some(file) = store.open(object)? else { return Ok(None) };
        let size = file.metadata().map_err(|error| StoreError::Io { doing: format!("opening {object}"), error })?.len();
        let open = LocalObject { file: Arc::new(file), size };
        self.files.lock().insert(*object, open.clone(), 1);
        Ok(Some(open))
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

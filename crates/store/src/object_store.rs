//! The store as an [`ObjectStore`]: opening objects, and beginning new ones.

use std::fs::File;
use std::io;
use std::sync::Arc;

use tarpon_blob::{ObjectStore, ObjectWriter, Opened, PartialObject};
use tarpon_oci::Digest;

use crate::files::{io_error, open_existing};
use crate::objects::SMALL_OBJECT;
use crate::store::Store;
use crate::writer::Writer;
use crate::{StoreError, partial};

/// Attempts to hash an object that changes meanwhile: an import relies on it, or it is no longer an object.
const HASH_TRIES: usize = 3;

impl ObjectStore for Store {
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError> {
        let shared = &*self.shared;
        let path = shared.layout.object(object);
        for _ in 0..HASH_TRIES {
            let Some(file) = open_existing(shared.storage(), &path)? else { return Ok(None) };
            let metadata = || shared.storage.file_metadata(&file).map_err(io_error("examining", &path));
            let before = metadata()?;
            if shared.hashed.has(object, &before) {
                return Ok(Some(file));
            }
            if !shared.proves_sound(object, &path, &before, &file)? {
                return Ok(None);
            }
            // From now on, the holders of the open file check for changes.
            if metadata()? == before {
                return Ok(Some(file));
            }
        }
        Err(io_error("hashing", &path)(io::ErrorKind::ResourceBusy.into()))
    }

    fn open_checked(&self, object: &Digest) -> Result<Opened<File>, StoreError> {
        let shared = &*self.shared;
        let path = shared.layout.object(object);
        let Some(file) = open_existing(shared.storage(), &path)? else { return Ok(Opened::Absent) };
        let metadata = shared.storage.file_metadata(&file).map_err(io_error("examining", &path))?;
        let is_known = shared.hashed.has(object, &metadata);
        Ok(if is_known { Opened::Sound(file) } else { Opened::Unchecked(metadata.size) })
    }

    fn contains(&self, object: &Digest) -> bool {
        Store::contains(self, object)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.shared.health.may_write() && self.shared.budget.lacking(bytes) == 0
    }

    fn partial(&self, object: &Digest, list: &Digest, size: u64) -> Result<Arc<dyn PartialObject>, StoreError> {
        partial::open(&self.shared, object, list, size)
    }

    fn writer(&self, size_hint: u64) -> Result<Box<dyn ObjectWriter>, StoreError> {
        self.shared.make_room(size_hint.min(SMALL_OBJECT))?;
        Ok(Box::new(Writer::new(&self.shared, size_hint)))
    }
}

impl Store {
    /// Whether the complete object is local. Cheaper than opening it; does not detect the effects of a power cut.
    pub fn contains(&self, object: &Digest) -> bool {
        self.shared.storage().metadata(&self.shared.layout.object(object)).is_ok()
    }
}

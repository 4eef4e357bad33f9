//! Damaged objects. Their files are moved to `corrupt/`, under names that do not lead to an object. Open ones are still
//! read: by the kernel, for a mount in mode `native`, and by programs, including those that open such a file of a mount
//! while others have it open. So the right bytes are written into the same file. This is the only place where the store
//! changes a file that others may have open, and that file is no object any more.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tarpon_oci::{Digest, Hasher, Verified};

use crate::StoreError;
use crate::files::{self, FILE_MODE, OBJECT_MODE, io_error};
use crate::layout::CORRUPT;
use crate::storage::Access;
use crate::store::{Shared, Store};

/// Damaged files per object that eviction keeps for the mend. An object is damaged again only after it was fetched again,
/// so more than this accumulate only on a disk that cannot be mended.
const KEPT_PER_OBJECT: usize = 4;

/// A file in `corrupt/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DamagedObject {
    /// The object that the file should contain.
    pub object: Digest,
    path: PathBuf,
}

/// A file in `corrupt/` that receives its right bytes.
#[derive(Debug)]
pub struct MendedFile {
    shared: Arc<Shared>,
    damaged: DamagedObject,
    file: File,
}

impl Store {
    /// The damaged objects that were moved out and not yet removed.
    pub fn damaged_objects(&self) -> Result<Vec<DamagedObject>, StoreError> {
        let folder = self.shared.layout.name(CORRUPT);
        let names = files::list(self.shared.storage(), &folder)?;
        let damaged =
            names.iter().filter_map(|name| Some(DamagedObject { object: object_of(name)?, path: folder.join(name) }));
        Ok(damaged.collect())
    }

    /// Removes the files in `corrupt/`, except for up to [`KEPT_PER_OBJECT`] files of each object in `mounted`. Returns
    /// the bytes freed.
    pub(crate) fn remove_damaged(&self, mounted: &HashSet<Digest>) -> Result<u64, StoreError> {
        let folder = self.shared.layout.name(CORRUPT);
        let (mut kept, mut freed) = (HashMap::new(), 0);
        for name in files::list(self.shared.storage(), &folder)? {
            if let Some(object) = object_of(&name).filter(|object| mounted.contains(object)) {
                let count: &mut usize = kept.entry(object).or_default();
                *count += 1;
                if *count <= KEPT_PER_OBJECT {
                    continue;
                }
            }
            let path = folder.join(name);
            let bytes = self.shared.tree_size(&path)?;
            files::remove_all(self.shared.storage(), &path)?;
            freed += bytes;
        }
        Ok(freed)
    }

    /// Starts to write the right bytes into a damaged file. `None` if the file no longer exists.
    pub fn mend(&self, damaged: &DamagedObject) -> Result<Option<MendedFile>, StoreError> {
        let (shared, path) = (Arc::clone(&self.shared), &damaged.path);
        let open = || {
            shared.storage.set_mode(&shared.storage.open(path, Access::Read)?, FILE_MODE)?;
            shared.storage.open(path, Access::ReadWrite)
        };
        match open() {
            Ok(file) => Ok(Some(MendedFile { shared: Arc::clone(&shared), damaged: damaged.clone(), file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("opening", path)(error)),
        }
    }
}

/// The object that a file in `corrupt/` should contain.
fn object_of(name: &OsStr) -> Option<Digest> {
    let (hex, _) = name.to_str()?.split_once('-')?;
    Digest::from_hex(hex).ok()
}

impl MendedFile {
    /// Digest of the current content.
    pub fn digest(&self) -> Result<Digest, StoreError> {
        let mut hasher = Hasher::new();
        let hashed = files::hash_file(self.shared.storage(), &self.file, &mut hasher);
        hashed.map(|_| hasher.finish()).map_err(io_error("reading", &self.damaged.path))
    }

    /// Leaves the content unchanged and removes the file's last name.
    pub fn leave(&self) -> Result<(), StoreError> {
        self.keep()?;
        files::unlink(self.shared.storage(), &self.damaged.path)
    }

    /// Leaves the content and the name unchanged.
    pub fn keep(&self) -> Result<(), StoreError> {
        let closed = self.shared.storage().set_mode(&self.file, OBJECT_MODE);
        closed.map_err(io_error("protecting", &self.damaged.path))
    }

    /// Whether another file has the same content. Reads up to the first difference.
    pub fn is_same_as(&self, other: &File) -> Result<bool, StoreError> {
        let same = files::are_same(self.shared.storage(), &self.file, other);
        same.map_err(io_error("comparing", &self.damaged.path))
    }

    /// Writes verified bytes at their offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        let written = files::write_all_at(self.shared.storage(), &self.file, bytes, offset);
        written.map_err(io_error("writing", &self.damaged.path))
    }

    /// Finishes after all `size` bytes were written: hashes the file as it reads now, and removes its last name.
    pub fn finish(&self, size: u64) -> Result<(), StoreError> {
        let (storage, path) = (self.shared.storage(), &self.damaged.path);
        let mut hasher = Hasher::new();
        let hashed = storage
            .set_len(&self.file, size)
            .and_then(|()| storage.set_mode(&self.file, OBJECT_MODE))
            .and_then(|()| files::hash_file(storage, &self.file, &mut hasher));
        hashed.map_err(io_error("writing", path))?;
        if Verified::check_stream(&self.damaged.object, hasher).is_err() {
            return Err(StoreError::Corrupt(self.damaged.object));
        }
        files::unlink(storage, path)
    }
}

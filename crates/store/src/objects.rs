//! Complete objects: opening them, and linking new ones in.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tarpon_fetch::{ObjectStore, ObjectWriter, PartialObject};
use tarpon_oci::{Digest, Hasher, Verified};

use crate::budget::{on_disk, signed};
use crate::files::{self, io_error};
use crate::layout::{CORRUPT, DIR_MODE, open_existing, unique_name};
use crate::store::{Shared, Store};
use crate::writer::Writer;
use crate::{StoreError, partial};

/// Objects up to this size are gathered in memory and written with one call when they are complete. Most files of an
/// image are smaller, and a file that is never begun costs nothing.
pub(crate) const SMALL_OBJECT: u64 = 64 << 10;

/// Times that linking in is tried again when others create and remove the same names meanwhile.
const LINK_TRIES: usize = 8;

impl ObjectStore for Store {
    fn open(&self, object: &Digest) -> Result<Option<File>, StoreError> {
        let shared = &*self.shared;
        let path = shared.layout.object(object);
        let Some(file) = open_existing(shared.storage(), &path)? else { return Ok(None) };
        Ok(if shared.is_sound(object, &path, &file)? { Some(file) } else { None })
    }

    fn contains(&self, object: &Digest) -> bool {
        Store::contains(self, object)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.shared.health.may_write() && self.shared.budget.lacking(bytes) == 0
    }

    fn partial(&self, object: &Digest, list: &Digest, size: u64) -> Result<Arc<dyn PartialObject>, StoreError> {
        Ok(partial::open(&self.shared, object, list, size)?)
    }

    fn writer(&self, size_hint: u64) -> Result<Box<dyn ObjectWriter>, StoreError> {
        self.shared.make_room(size_hint.min(SMALL_OBJECT))?;
        Ok(Box::new(Writer::new(&self.shared, size_hint)))
    }
}

impl Store {
    /// Whether the complete object is here. Cheaper than opening it; says nothing about a power cut.
    pub fn contains(&self, object: &Digest) -> bool {
        self.shared.storage().metadata(&self.shared.layout.object(object)).is_ok()
    }
}

/// What became of an object that was to be linked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    New,
    WasHere,
}

impl Shared {
    /// Gives a complete, checked object its name with `link`, which must fail if the name is taken.
    pub(crate) fn link_in(
        &self,
        object: &Digest,
        link: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<Linked, StoreError> {
        let path = self.layout.object(object);
        self.durability.before_change().map_err(|error| {
            tracing::debug!(error = %self.refuse(error), "not keeping {object}");
            StoreError::Full
        })?;
        for _ in 0..LINK_TRIES {
            let error = match link(&path) {
                Ok(()) => {
                    self.health.succeeded();
                    return Ok(Linked::New);
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::NotFound => {
                    let parent = path.parent().unwrap_or(self.layout.root());
                    match self.storage.create_dir(parent, DIR_MODE) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(self.bypass("creating", parent)(error));
                        }
                        _ => {}
                    }
                }
                io::ErrorKind::AlreadyExists => {
                    if self.claim_existing(object)? {
                        return Ok(Linked::WasHere);
                    }
                }
                io::ErrorKind::Interrupted => {}
                _ => return Err(self.bypass("linking in", &path)(error)),
            }
        }
        Err(self.bypass("linking in", &path)(io::ErrorKind::ResourceBusy.into()))
    }

    /// Whether the object is here already. If so its time becomes now: an import that is under way relies on it, and
    /// eviction spares whatever is newer than a running import.
    pub(crate) fn claim_existing(&self, object: &Digest) -> Result<bool, StoreError> {
        let path = self.layout.object(object);
        // A disk that cannot be read is bypassed like one that cannot be written.
        let bypassed = |error| match error {
            StoreError::Io { error, .. } => self.bypass("examining", &path)(error),
            error => error,
        };
        let Some(file) = open_existing(self.storage(), &path).map_err(bypassed)? else { return Ok(false) };
        if !self.is_sound(object, &path, &file).map_err(bypassed)? {
            return Ok(false);
        }
        match self.storage.set_modified(&path, None) {
            Ok(()) => {
                // That changed the file's metadata, and nothing else.
                self.note_hashed(object, &file);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.bypass("touching", &path)(error)),
        }
    }

    /// Whether the object is what its name says. Hashed once per boot, and again after any change of the file; what is damaged is
    /// moved out.
    pub(crate) fn is_sound(&self, object: &Digest, path: &Path, file: &File) -> Result<bool, StoreError> {
        let metadata = self.storage.file_metadata(file).map_err(io_error("examining", path))?;
        if self.hashed.has(object, &metadata) {
            return Ok(true);
        }
        let is_sound = self.hash_object(object, file)?;
        if !is_sound {
            self.move_out(object, path, metadata.size)?;
        }
        Ok(is_sound)
    }

    /// Hashes the object, and notes it if it is what its name says. One that cannot be read is as bad as a wrong one.
    pub(crate) fn hash_object(&self, object: &Digest, file: &File) -> Result<bool, StoreError> {
        let before = self.storage.file_metadata(file).map_err(io_error("examining", self.layout.root()))?;
        let mut hasher = Hasher::new();
        if let Err(error) = files::hash_file(self.storage(), file, &mut hasher) {
            tracing::warn!(%object, %error, "object cannot be read");
            return Ok(false);
        }
        let is_sound = Verified::check_stream(object, hasher).is_ok();
        if is_sound {
            // As it was before: what changes meanwhile must be hashed again.
            self.hashed.add(object, &before);
        }
        Ok(is_sound)
    }

    /// The file was just written with the object's bytes, which were hashed, or only its metadata was changed since it was hashed.
    pub(crate) fn note_hashed(&self, object: &Digest, file: &File) {
        if let Ok(metadata) = self.storage.file_metadata(file) {
            self.hashed.add(object, &metadata);
        }
    }

    /// Moves a damaged object to `corrupt/`, where whoever looks after the mounts finds it. It may be gone already.
    pub(crate) fn move_out(&self, object: &Digest, path: &Path, size: u64) -> Result<(), StoreError> {
        let folder = self.layout.name(CORRUPT);
        files::create_dir(self.storage(), &folder, DIR_MODE)?;
        let target = folder.join(format!("{}-{}", object.hex(), unique_name()));
        match self.storage.rename(path, &target) {
            Ok(()) => {
                tracing::warn!(%object, to = %target.display(), "damaged object moved out of the store");
                self.budget.add(-signed(on_disk(size)));
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("moving out", path)(error)),
        }
    }
}

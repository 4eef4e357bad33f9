//! Complete objects: opening them, and linking new ones in.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tarpon_fetch::{ObjectStore, ObjectWriter, PartialObject};
use tarpon_oci::{Digest, Hasher, Verified};

use crate::files::{self, io_error};
use crate::layout::{DIR_MODE, open_existing};
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
        if let Some(since) = shared.durability.suspect_since()
            && !shared.is_sound(object, &path, &file, since)?
        {
            return Ok(None);
        }
        Ok(Some(file))
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
        if let Some(since) = self.durability.suspect_since() {
            let Some(file) = open_existing(self.storage(), &path)? else { return Ok(false) };
            if !self.is_sound(object, &path, &file, since)? {
                return Ok(false);
            }
        }
        match self.storage.set_modified(&path, None) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.bypass("touching", &path)(error)),
        }
    }

    /// Checks an object that a power cut may have damaged; what is damaged is removed.
    pub(crate) fn is_sound(
        &self,
        object: &Digest,
        path: &Path,
        file: &File,
        since: SystemTime,
    ) -> Result<bool, StoreError> {
        let metadata = self.storage.file_metadata(file).map_err(io_error("examining", path))?;
        if metadata.modified < since {
            return Ok(true);
        }
        let mut hasher = Hasher::new();
        files::hash_file(self.storage(), file, &mut hasher).map_err(io_error("reading", path))?;
        if Verified::check_stream(object, hasher).is_err() {
            tracing::warn!(%object, "object was damaged by an unclean stop and is dropped");
            files::unlink(self.storage(), path)?;
            self.budget.add(-crate::budget::signed(crate::budget::on_disk(metadata.size)));
            return Ok(false);
        }
        // Once is enough: from here on it looks like one that was synced. If that fails it is hashed again.
        let before = since.checked_sub(std::time::Duration::from_secs(1)).unwrap_or(std::time::UNIX_EPOCH);
        if let Err(error) = self.storage.set_modified(path, Some(before)) {
            tracing::debug!(%error, "cannot note that {object} was checked");
        }
        Ok(true)
    }
}

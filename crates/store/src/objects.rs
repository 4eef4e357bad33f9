//! Complete objects: linking in new ones, and checking those that exist.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use tarpon_blob::LogLimit;
use tarpon_oci::{Digest, Hasher, Verified};

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::files::{self, DIR_MODE, io_error, open_existing, unique_name};
use crate::hashed;
use crate::layout::CORRUPT;
use crate::locks::SHORT_WAIT;
use crate::storage::Metadata;
use crate::store::Shared;

/// Objects up to this size are buffered in memory and written with one call when they are complete. Most files of an
/// image are smaller, and a file that is never created costs nothing.
pub(crate) const SMALL_OBJECT: u64 = 64 << 10;

/// Attempts to link in while others create and remove the same names.
const LINK_TRIES: usize = 8;

/// Result of linking in an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    New,
    WasHere,
}

impl Shared {
    /// Names a complete, checked object with `link`, which must fail if the name is taken.
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

    /// Whether the object is already local. If so its time becomes now: a running import relies on it, and eviction
    /// spares everything newer than a running import. The file is locked meanwhile, shared with other claims. An eviction
    /// that read its time before removes the file only under an exclusive lock, after a second check.
    pub(crate) fn claim_existing(&self, object: &Digest) -> Result<bool, StoreError> {
        let path = self.layout.object(object);
        // A disk that cannot be read is bypassed like one that cannot be written.
        let bypassed = |error| match error {
            StoreError::Io { error, .. } => self.bypass("examining", &path)(error),
            error => error,
        };
        let Some(file) = open_existing(self.storage(), &path).map_err(bypassed)? else { return Ok(false) };
        let locked = self.locks().hold_within(file, false, SHORT_WAIT);
        let locked = locked.and_then(|file| file.ok_or_else(|| io::ErrorKind::TimedOut.into()));
        let file = locked.map_err(|error| self.bypass("locking", &path)(error))?;
        let metadata = self.storage.file_metadata(&file).map_err(|error| self.bypass("examining", &path)(error))?;
        // Removed between the opening and the lock.
        if metadata.links == 0 || !self.is_sound(object, &path, &metadata, &file).map_err(bypassed)? {
            return Ok(false);
        }
        match self.storage.set_modified(&path, None) {
            Ok(()) => {
                // This changed the file's metadata only.
                self.note_hashed(object, &file);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.bypass("touching", &path)(error)),
        }
    }

    /// Whether the object matches its name. Hashed once per boot, and again after any change of the file; a damaged file
    /// is moved out.
    fn is_sound(&self, object: &Digest, path: &Path, metadata: &Metadata, file: &File) -> Result<bool, StoreError> {
        Ok(self.hashed.has(object, metadata) || self.proves_sound(object, path, metadata, file)?)
    }

    /// As [`Shared::is_sound`], for a file that must be hashed. `before`: its metadata.
    pub(crate) fn proves_sound(
        &self,
        object: &Digest,
        path: &Path,
        before: &Metadata,
        file: &File,
    ) -> Result<bool, StoreError> {
        let condition = self.hash_object(object, before, file)?;
        let is_sound = matches!(condition, Condition::Sound);
        // A file that lost its name meanwhile is no finding, and no object either.
        self.settled(object, path, before, condition)?;
        Ok(is_sound)
    }

    /// Hashes a file, and records it if it matches its name. `before`: its metadata before the read.
    pub(crate) fn hash_object(&self, object: &Digest, before: &Metadata, file: &File) -> Result<Condition, StoreError> {
        let notable = self.is_notable(before, file);
        self.condition_after(object, notable, self.hash_whole(file).map(|(_, hasher)| hasher))
    }

    /// The size of a file and the hash of its bytes, which are read again if that fails once.
    pub(crate) fn hash_whole(&self, file: &File) -> io::Result<(u64, Hasher)> {
        read_again(|| {
            let mut hasher = Hasher::new();
            files::hash_file(self.storage(), file, &mut hasher).map(|size| (size, hasher))
        })
    }

    /// Returns the metadata of a file that is hashed from now on, if a later change would be visible in it.
    pub(crate) fn is_notable<'m>(&self, before: &'m Metadata, file: &File) -> Option<&'m Metadata> {
        let is_settled = hashed::is_settled(before.changed, self.clock.wall());
        (is_settled || self.storage.has_exact_times(file)).then_some(before)
    }

    /// Derives the object's condition from the bytes of a file or its read error. `before`: as [`Shared::is_notable`]
    /// returned it before the read.
    pub(crate) fn condition_after(
        &self,
        object: &Digest,
        before: Option<&Metadata>,
        read: io::Result<Hasher>,
    ) -> Result<Condition, StoreError> {
        match read.map(|hasher| Verified::check_stream(object, hasher)) {
            Ok(Err(_)) => Ok(Condition::Damaged),
            Ok(Ok(_)) => {
                // The earlier metadata: a file that changes meanwhile must be hashed again.
                if let Some(before) = before {
                    self.hashed.add(object, before);
                }
                Ok(Condition::Sound)
            }
            Err(error) if is_of_medium(&error) => Ok(Condition::Unreadable(error)),
            Err(error) => Err(StoreError::Io { doing: format!("reading {object}"), error }),
        }
    }

    /// Records the file as hashed: it was just written with the object's hashed bytes and was
    /// [touched](crate::storage::Storage::touch), or only its metadata changed since it was hashed.
    pub(crate) fn note_hashed(&self, object: &Digest, file: &File) {
        self.hashed.add_file(object, file);
    }

    /// Moves a file that does not match its name to `corrupt/`, where the mend of the mounts finds it. `false`: the name
    /// leads to another file than the one that was `hashed`, or to none, and is left alone.
    pub(crate) fn move_out(
        &self,
        object: &Digest,
        path: &Path,
        hashed: &Metadata,
        condition: &Condition,
    ) -> Result<bool, StoreError> {
        if !self.leads_to(path, hashed)? {
            return Ok(false);
        }
        let folder = self.layout.name(CORRUPT);
        files::create_dir(self.storage(), &folder, DIR_MODE)?;
        let target = folder.join(format!("{}-{}", object.hex(), unique_name()));
        match self.storage.rename(path, &target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io_error("moving out", path)(error)),
        }
        if !self.leads_to(&target, hashed)? {
            self.put_back(&target, path)?;
            return Ok(false);
        }
        static MOVED: LogLimit = LogLimit::new();
        if let Some(left_out) = MOVED.admit() {
            let to = target.display();
            match condition {
                Condition::Unreadable(error) => {
                    tracing::warn!(%object, %to, %error, "unreadable object moved out of the store{left_out}");
                }
                _ => tracing::warn!(%object, %to, "damaged object moved out of the store{left_out}"),
            }
        }
        self.budget.add(-signed(on_disk(hashed.size)));
        Ok(true)
    }

    pub(crate) fn leads_to(&self, path: &Path, file: &Metadata) -> Result<bool, StoreError> {
        match self.storage.metadata(path) {
            Ok(metadata) => Ok(metadata.is_same_file(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("examining", path)(error)),
        }
    }

    /// Gives the name back to a file that another process put in place between a check and the rename, unless a third
    /// file has the name by now.
    fn put_back(&self, moved: &Path, path: &Path) -> Result<(), StoreError> {
        match self.storage.link(moved, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io_error("moving back", path)(error)),
            _ => files::unlink(self.storage(), moved),
        }
    }
}

/// Result of hashing a file of the store.
#[derive(Debug)]
pub(crate) enum Condition {
    /// The file matches its name.
    Sound,
    /// The file does not match its name.
    Damaged,
    /// The disk does not return its bytes.
    Unreadable(io::Error),
}

/// Reads, and retries once after an error of the disk: a connection error passes, a bad sector stays.
pub(crate) fn read_again<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match read() {
        Err(error) if is_of_medium(&error) => read(),
        outcome => outcome,
    }
}

/// Whether the error means that the bytes are lost. All others belong to this process or pass, and are no evidence about
/// the file.
pub(crate) fn is_of_medium(error: &io::Error) -> bool {
    // In this order: by the device, critical medium error, integrity of a block, and two ways of a file system to report
    // that what it read is not what it wrote.
    const LOST: [Errno; 5] = [Errno::IO, Errno::NODATA, Errno::ILSEQ, Errno::UCLEAN, Errno::BADMSG];
    Errno::from_io_error(error).is_some_and(|errno| LOST.contains(&errno))
}

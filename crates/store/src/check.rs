//! Checks the local parts of an image before a mount: the files of its record, and its local objects.
//!
//! The kernel parses the tree and reads local objects by itself, so later damage would go unnoticed. Each file is hashed
//! once per boot and after each change (see `hashed`); for a known file, a check of its metadata suffices.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use tarpon_oci::Digest;

use crate::StoreError;
use crate::evict::ObjectList;
use crate::files::io_error;
use crate::layout::{self, RECORD};
use crate::objects::is_of_medium;
use crate::record::{ImageRecord, Part, PartRecord};
use crate::renew;
use crate::storage::Metadata;
use crate::store::{Shared, Store};
use crate::verify::{Checked, Progress};

/// Objects per batch of a thread: large enough to avoid contention, small enough that all threads end together.
const BATCH: usize = 64;

/// Maximum number of checking threads. More than this wait for the disk.
const THREADS: usize = 16;

/// Images with fewer objects are checked by one thread: checking them costs less than starting another thread.
const FEW_OBJECTS: usize = 512;

/// State of an image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// No record exists.
    Absent,
    /// A record exists but is unusable or incomplete.
    Damaged {
        /// The record, if it is readable and the damaged files are not needed for mounting.
        usable: Option<ImageRecord>,
        /// Names of the missing or damaged files.
        files: Vec<&'static str>,
    },
    /// The record; each of its files was hashed.
    Sound(ImageRecord),
}

impl ImageState {
    /// Returns the record if all of it is sound.
    pub fn sound(self) -> Option<ImageRecord> {
        match self {
            Self::Sound(record) => Some(record),
            Self::Absent | Self::Damaged { .. } => None,
        }
    }
}

impl Store {
    /// Returns the state of an image's record. Each file is hashed once per boot and after each change of it.
    pub fn image_state(&self, manifest: &Digest) -> Result<ImageState, StoreError> {
        let folder = self.shared.layout.image(manifest);
        let Some(record) = self.image(manifest)? else {
            let is_there = self.shared.storage.metadata(&folder).is_ok();
            let damaged = || ImageState::Damaged { usable: None, files: vec![RECORD] };
            return Ok(if is_there { damaged() } else { ImageState::Absent });
        };
        let damaged = self.damaged_parts(&record)?;
        if damaged.is_empty() {
            return Ok(ImageState::Sound(record));
        }
        let usable = (!damaged.iter().any(|part| part.is_required())).then_some(record);
        Ok(ImageState::Damaged { usable, files: damaged.iter().map(|part| part.file_name()).collect() })
    }

    /// Whether all files of this image were checked since boot: then [`Store::check_image`] hashes little or nothing.
    pub fn knows_image(&self, manifest: &Digest) -> bool {
        self.shared.hashed_records.has_image(manifest, self.tenant_id())
    }

    /// Checks that the image's local objects match their names, and moves out those that do not. Hashes what was not
    /// hashed since boot or has changed since, on all cores. `progress` is called after each hashed object, from several
    /// threads. If the image's list of objects is damaged, the image is reported as damaged and nothing else is checked.
    pub fn check_image(&self, manifest: &Digest, progress: &(dyn Fn(Progress) + Sync)) -> Result<Checked, StoreError> {
        let Some(record) = self.image(manifest)? else { return Ok(Checked::default()) };
        let list = record.part(Part::Objects).map(|part| self.is_part_sound(manifest, part)).transpose()?;
        if list != Some(true) {
            return Ok(Checked { damaged_images: vec![*manifest], ..Checked::default() });
        }
        let mut objects = Vec::new();
        let path = self.shared.layout.image(manifest).join(Part::Objects.file_name());
        ObjectList::new(path).take(&self.shared, u8::MAX, |object| objects.push(object))?;
        let check =
            Check { shared: &self.shared, objects, next: AtomicUsize::new(0), done: Mutex::default(), progress };
        let checked = check.run()?;
        self.shared.hashed.flush();
        self.shared.hashed_records.add_image(&record.manifest, self.tenant_id());
        self.shared.hashed_records.flush();
        Ok(checked)
    }

    /// Returns the files of the image's record that do not match the record: missing, truncated or changed. As in
    /// [`Store::check_image`], each is hashed once per boot and after each change.
    fn damaged_parts(&self, record: &ImageRecord) -> Result<Vec<Part>, StoreError> {
        let mut damaged = Vec::new();
        for part in &record.parts {
            let is_sound = || self.is_part_sound(&record.manifest, part);
            // A process that rewrote the tree may have ended between the record and the file.
            let is_renewed = || -> Result<bool, StoreError> {
                Ok(part.part == Part::Tree && renew::complete(&self.shared, record)? && is_sound()?)
            };
            if !(is_sound()? || is_renewed()?) {
                damaged.push(part.part);
            }
        }
        if damaged.is_empty() {
            self.shared.hashed_records.flush();
        }
        Ok(damaged)
    }

    fn is_part_sound(&self, manifest: &Digest, part: &PartRecord) -> Result<bool, StoreError> {
        let folder = self.shared.layout.image(manifest);
        match self.shared.open_part(&folder, part) {
            Err(StoreError::Io { error, doing }) if is_of_medium(&error) => {
                tracing::warn!(doing, %error, "part of an image's record cannot be read");
                Ok(false)
            }
            opened => Ok(opened?.is_some()),
        }
    }
}

/// A running check of an image.
struct Check<'a> {
    shared: &'a Shared,
    objects: Vec<Digest>,
    next: AtomicUsize,
    done: Mutex<Checked>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl Check<'_> {
    fn run(self) -> Result<Checked, StoreError> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
        let threads = if self.objects.len() < FEW_OBJECTS { 1 } else { cores };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| self.work())).collect();
            let mine = self.work();
            // A thread that panicked contributes no result.
            let join = |other: thread::ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(|_| Err(panicked()));
            others.into_iter().map(join).fold(mine, Result::and)
        })?;
        Ok(self.done.into_inner())
    }

    fn work(&self) -> Result<(), StoreError> {
        let folder = self.shared.layout.name("objects");
        loop {
            let start = self.next.fetch_add(BATCH, Ordering::Relaxed);
            let Some(rest) = self.objects.get(start..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
            let batch = rest.get(..BATCH).unwrap_or(rest);
            for (object, metadata) in self.shared.hashed.unknown(self.look(&folder, batch)?) {
                self.check(&object, &metadata)?;
            }
        }
    }

    /// Returns the metadata of those of these objects that are local.
    fn look(&self, folder: &Path, objects: &[Digest]) -> Result<Vec<(Digest, Metadata)>, StoreError> {
        let names: Vec<String> = objects.iter().map(layout::name_in_objects).collect();
        let found =
            self.shared.storage.metadata_in(folder, &names).map_err(io_error("examining objects in", folder))?;
        Ok(objects.iter().zip(found).filter_map(|(object, metadata)| Some((*object, metadata?))).collect())
    }

    fn check(&self, object: &Digest, metadata: &Metadata) -> Result<(), StoreError> {
        let path = self.shared.layout.object(object);
        let condition = self.shared.check(object, &path)?;
        let mut done = self.done.lock();
        done.note(*object, metadata.size, &condition);
        let hashed = done.hashed;
        drop(done);
        (self.progress)(hashed);
        Ok(())
    }
}

fn panicked() -> StoreError {
    StoreError::Io { doing: "checking objects".to_owned(), error: std::io::Error::other("a thread failed") }
}

//! Hashes the content of the store: everything on demand, or what an unclean stop may have damaged.

use std::path::Path;
use std::time::SystemTime;

use tarpon_oci::Digest;

use crate::StoreError;
use crate::files::{self, io_error, open_existing};
use crate::locks::RECORD_WAIT;
use crate::mounts::Mount;
use crate::objects::{Condition, is_of_medium};
use crate::record::{ImageRecord, Part};
use crate::storage::Metadata;
use crate::store::{Shared, Store};
use crate::walk::{ListedFile, Unexamined, fan_out};

/// Progress of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Hashed objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// The hashed objects.
    pub hashed: Progress,
    /// Objects that did not match their names. They were moved to `corrupt/` and will be fetched again.
    pub corrupt: Vec<Digest>,
    /// Objects that the disk does not return. Those whose bytes are lost were moved to `corrupt/`, too: a new fetch
    /// writes elsewhere. Those whose metadata is lost cannot be moved.
    pub unreadable: Vec<UnreadableObject>,
    /// Images whose records are damaged; they will be fetched again.
    pub damaged_images: Vec<Digest>,
    /// Objects of which the disk has only a part, because the machine stopped before they were flushed. They were moved
    /// to `corrupt/` as well, but nothing is wrong with the disk.
    pub torn_objects: Vec<Digest>,
    /// The same of image records, which were removed.
    pub torn_images: Vec<Digest>,
}

/// An object that the disk does not return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableObject {
    /// The object.
    pub object: Digest,
    /// The disk's error.
    pub error: String,
}

impl Checked {
    /// Number of lost objects.
    pub fn bad_objects(&self) -> usize {
        self.corrupt.len() + self.unreadable.len()
    }

    /// As [`Checked::note`]: an error that is not about the disk is an error of the check.
    fn note_unexamined(&mut self, unexamined: Vec<Unexamined>) -> Result<(), StoreError> {
        for file in unexamined {
            if !is_of_medium(&file.error) {
                return Err(file.into_error());
            }
            let object = file.object;
            self.unreadable.push(UnreadableObject { object, error: file.into_error().to_string() });
        }
        Ok(())
    }

    pub(crate) fn note(&mut self, object: Digest, size: u64, condition: &Condition) {
        self.note_one(object, size, condition, false);
    }

    fn note_one(&mut self, object: Digest, size: u64, condition: &Condition, is_unflushed: bool) {
        self.hashed.objects += 1;
        self.hashed.bytes += size;
        match condition {
            Condition::Sound => {}
            Condition::Damaged if is_unflushed => self.torn_objects.push(object),
            Condition::Damaged => self.corrupt.push(object),
            Condition::Unreadable(error) => self.unreadable.push(UnreadableObject { object, error: error.to_string() }),
        }
    }
}

impl Store {
    /// Hashes every object and every image record. `progress` is called after each object.
    pub fn verify(&self, mut progress: impl FnMut(Progress)) -> Result<Checked, StoreError> {
        let begun = self.shared.clock.wall();
        let check = Check { since: self.shared.durability.suspect_since(), is_of_all: true };
        let checked = self.check_parts(check, &mut progress)?;
        self.recount()?;
        if check.since.is_some() {
            self.shared.durability.settled(begun)?;
        }
        Ok(checked)
    }

    /// Whether no objects remain unchecked after an unclean stop of the machine. Callers need not check:
    /// [`ObjectStore::open`](tarpon_blob::ObjectStore::open) checks what it opens, [`Store::check_image`] the objects of
    /// the image, and [`Store::maintain`] the rest.
    pub fn is_settled(&self) -> bool {
        self.shared.durability.suspect_since().is_none()
    }

    /// Hashes what was stored after the last sync before an unclean stop of the machine. Does nothing, at no cost, in
    /// every other case.
    pub fn settle(&self, mut progress: impl FnMut(Progress)) -> Result<Checked, StoreError> {
        let since = self.shared.durability.suspect_since();
        if since.is_none() {
            return Ok(Checked::default());
        }
        let begun = self.shared.clock.wall();
        let checked = self.check_parts(Check { since, is_of_all: false }, &mut progress)?;
        // The machine may have stopped before the sum of the sizes was flushed.
        self.recount()?;
        self.shared.durability.settled(begun)?;
        Ok(checked)
    }

    fn check_parts(&self, check: Check, progress: &mut dyn FnMut(Progress)) -> Result<Checked, StoreError> {
        let mut checked = Checked::default();
        for part in self.whole().parts()? {
            part.check_objects(check, &mut checked, progress)?;
            part.check_images(check, &mut checked)?;
        }
        Ok(checked)
    }

    fn check_objects(
        &self,
        check: Check,
        checked: &mut Checked,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StoreError> {
        for (_, folder) in fan_out() {
            let listed = self.shared.objects_in("objects", &folder)?;
            checked.note_unexamined(listed.unexamined)?;
            for found in listed.found {
                let is_unflushed = check.is_unflushed(&found.metadata);
                if !check.is_of_all && (!is_unflushed || self.shared.is_hashed(&found)) {
                    continue;
                }
                let condition = self.shared.check(&found.object, &found.path)?;
                checked.note_one(found.object, found.metadata.size, &condition, is_unflushed);
                progress(checked.hashed);
            }
        }
        self.shared.hashed.flush();
        Ok(())
    }

    fn check_images(&self, check: Check, checked: &mut Checked) -> Result<(), StoreError> {
        let images = self.shared.layout.name("images");
        for name in files::list(self.shared.storage(), &images)? {
            let Some(manifest) = name.to_str().and_then(|name| Digest::from_hex(name).ok()) else { continue };
            // The folder changes with each file that is added or replaced.
            let Ok(metadata) = self.shared.storage.metadata(&images.join(&name)) else { continue };
            let is_unflushed = check.is_unflushed(&metadata);
            if (!check.is_of_all && !is_unflushed) || self.is_whole(self.image(&manifest)?)? {
                continue;
            }
            if is_unflushed {
                self.remove_torn_image(&manifest, checked)?;
            } else {
                checked.damaged_images.push(manifest);
            }
        }
        Ok(())
    }

    /// Whether there is a record, and all its files match it.
    fn is_whole(&self, record: Option<ImageRecord>) -> Result<bool, StoreError> {
        let Some(record) = record else { return Ok(false) };
        let folder = self.shared.layout.image(&record.manifest);
        for part in Part::ALL.iter().filter_map(|&part| record.part(part)) {
            if self.shared.hash_part(&folder, part)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes a record that the last stop of the machine left incomplete, unless it is in use, or was replaced meanwhile.
    fn remove_torn_image(&self, manifest: &Digest, checked: &mut Checked) -> Result<(), StoreError> {
        let _lock = self.shared.lock_eviction(RECORD_WAIT, "remove an incomplete image record")?;
        if self.is_whole(self.record(manifest)?)? {
            return Ok(());
        }
        let boot = self.shared.durability.boot();
        // Of a mount of an earlier boot only the record exists.
        let is_mounted =
            |mount: &Mount| mount.record.content() == self.content(manifest) && mount.record.server.boot == boot;
        if self.all_mounts()?.iter().any(is_mounted) {
            checked.damaged_images.push(*manifest);
            return Ok(());
        }
        tracing::info!(image = %manifest, "removing an image record that the last stop of the machine left incomplete");
        self.drop_image(manifest)?;
        checked.torn_images.push(*manifest);
        Ok(())
    }
}

/// What to check.
#[derive(Debug, Clone, Copy)]
struct Check {
    /// What changed since then had perhaps not reached the disk when the machine stopped.
    since: Option<SystemTime>,
    /// Not only what changed since then.
    is_of_all: bool,
}

impl Check {
    fn is_unflushed(self, metadata: &Metadata) -> bool {
        self.since.is_some_and(|since| metadata.modified >= since)
    }
}

impl Shared {
    fn is_hashed(&self, found: &ListedFile) -> bool {
        self.hashed.has(&found.object, &found.metadata)
    }

    /// Hashes the object unconditionally, and moves it out if it is damaged. One that is removed or replaced meanwhile is
    /// no finding.
    pub(crate) fn check(&self, object: &Digest, path: &Path) -> Result<Condition, StoreError> {
        let Some(file) = open_existing(self.storage(), path)? else { return Ok(Condition::Sound) };
        let before = self.storage.file_metadata(&file).map_err(io_error("examining", path))?;
        let condition = self.hash_object(object, &before, &file)?;
        self.settled(object, path, &before, condition)
    }

    /// Moves out a damaged file, and returns the condition to report.
    pub(crate) fn settled(
        &self,
        object: &Digest,
        path: &Path,
        hashed: &Metadata,
        condition: Condition,
    ) -> Result<Condition, StoreError> {
        let is_finding = !matches!(condition, Condition::Sound) && self.move_out(object, path, hashed, &condition)?;
        Ok(if is_finding { condition } else { Condition::Sound })
    }
}

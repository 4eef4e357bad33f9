//! Hashes the content of the store: everything on demand, or what an unclean stop may have damaged.

use std::path::Path;
use std::time::SystemTime;

use tarpon_oci::Digest;

use crate::StoreError;
use crate::files::{self, io_error, open_existing};
use crate::objects::{Condition, is_of_medium};
use crate::record::Part;
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
        self.hashed.objects += 1;
        self.hashed.bytes += size;
        match condition {
            Condition::Sound => {}
            Condition::Damaged => self.corrupt.push(object),
            Condition::Unreadable(error) => self.unreadable.push(UnreadableObject { object, error: error.to_string() }),
        }
    }
}

impl Store {
    /// Hashes every object and every image record. `progress` is called after each object.
    pub fn verify(&self, mut progress: impl FnMut(Progress)) -> Result<Checked, StoreError> {
        let begun = self.shared.clock.wall();
        let mut checked = Checked::default();
        for part in self.whole().parts()? {
            part.check_objects(None, &mut checked, &mut progress)?;
            part.check_images(&mut checked)?;
        }
        self.recount()?;
        if self.shared.durability.suspect_since().is_some() {
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
        let Some(since) = self.shared.durability.suspect_since() else { return Ok(Checked::default()) };
        let begun = self.shared.clock.wall();
        let mut checked = Checked::default();
        for part in self.whole().parts()? {
            part.check_objects(Some(since), &mut checked, &mut progress)?;
        }
        self.shared.durability.settled(begun)?;
        Ok(checked)
    }

    fn check_objects(
        &self,
        since: Option<SystemTime>,
        checked: &mut Checked,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StoreError> {
        for (_, folder) in fan_out() {
            let listed = self.shared.objects_in("objects", &folder)?;
            checked.note_unexamined(listed.unexamined)?;
            for found in listed.found {
                let is_known = |since| found.metadata.modified < since || self.shared.is_hashed(&found);
                if since.is_some_and(is_known) {
                    continue;
                }
                let condition = self.shared.check(&found.object, &found.path)?;
                checked.note(found.object, found.metadata.size, &condition);
                progress(checked.hashed);
            }
        }
        self.shared.hashed.flush();
        Ok(())
    }

    fn check_images(&self, checked: &mut Checked) -> Result<(), StoreError> {
        let images = self.shared.layout.name("images");
        for name in files::list(self.shared.storage(), &images)? {
            let Some(manifest) = name.to_str().and_then(|name| Digest::from_hex(name).ok()) else { continue };
            let Some(record) = self.image(&manifest)? else {
                checked.damaged_images.push(manifest);
                continue;
            };
            let folder = self.shared.layout.image(&manifest);
            for part in Part::ALL.iter().filter_map(|&part| record.part(part)) {
                if self.shared.open_part(&folder, part)?.is_none() {
                    checked.damaged_images.push(manifest);
                    break;
                }
            }
        }
        Ok(())
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

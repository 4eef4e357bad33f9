//! Hashing what the store holds: everything on demand, or what an unclean stop may have damaged.

use std::time::SystemTime;

use tarpon_fetch::ObjectStore;
use tarpon_oci::{Digest, Hasher, Verified};

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::evict::ObjectList;
use crate::files::{self, io_error};
use crate::layout::{DIR_MODE, open_existing, unique_name};
use crate::record::{ImageRecord, Part};
use crate::store::Store;
use crate::walk::{Found, fan_out};

/// How far a check has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that were hashed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// What was hashed.
    pub hashed: Progress,
    /// Objects that were not what their names say. They were moved to `corrupt/` and will be fetched again.
    pub corrupt: Vec<Digest>,
    /// Images whose records are damaged; they will be fetched again.
    pub damaged_images: Vec<Digest>,
}

impl Store {
    /// Hashes every object and every image record. `progress` is called after each object.
    pub fn verify(&self, mut progress: impl FnMut(Progress)) -> Result<Checked, StoreError> {
        let begun = self.shared.clock.wall();
        let mut checked = self.check_objects(None, &mut progress)?;
        self.check_images(&mut checked)?;
        self.recount()?;
        if self.shared.durability.suspect_since().is_some() {
            self.shared.durability.settled(begun)?;
        }
        Ok(checked)
    }

    /// Whether no unclean stop of the machine left objects that were not checked since. Nobody has to ask:
    /// [`ObjectStore::open`] checks what it opens, [`Store::load_image`] the objects of the image, and
    /// [`Store::maintain`] the rest.
    pub fn is_settled(&self) -> bool {
        self.shared.durability.suspect_since().is_none()
    }

    /// Hashes what was stored after the last sync before an unclean stop of the machine. Nothing to do, and free,
    /// in every other case.
    pub fn settle(&self, mut progress: impl FnMut(Progress)) -> Result<Checked, StoreError> {
        let Some(since) = self.shared.durability.suspect_since() else { return Ok(Checked::default()) };
        let begun = self.shared.clock.wall();
        let checked = self.check_objects(Some(since), &mut progress)?;
        self.shared.durability.settled(begun)?;
        Ok(checked)
    }

    /// As [`Store::settle`], for the objects of one image.
    pub(crate) fn settle_image(&self, image: &ImageRecord) -> Result<(), StoreError> {
        if self.is_settled() {
            return Ok(());
        }
        let mut list = ObjectList::new(self.shared.layout.image(&image.manifest).join(Part::Objects.file_name()));
        let mut outcome = Ok(());
        list.take(&self.shared, u8::MAX, |object| {
            if outcome.is_ok() {
                outcome = self.open(&object).map(drop);
            }
        })?;
        outcome
    }

    fn check_objects(
        &self,
        since: Option<SystemTime>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Checked, StoreError> {
        let mut checked = Checked::default();
        for (_, folder) in fan_out() {
            for found in self.shared.objects_in("objects", &folder)? {
                if since.is_some_and(|since| found.metadata.modified < since) {
                    continue;
                }
                if !self.is_what_it_says(&found)? {
                    self.move_out(&found)?;
                    checked.corrupt.push(found.object);
                }
                checked.hashed.objects += 1;
                checked.hashed.bytes += found.metadata.size;
                progress(checked.hashed);
            }
        }
        Ok(checked)
    }

    /// An object that is gone meanwhile is none of our business; one that cannot be read is as bad as a wrong one.
    fn is_what_it_says(&self, found: &Found) -> Result<bool, StoreError> {
        let Some(file) = open_existing(self.shared.storage(), &found.path)? else { return Ok(true) };
        let mut hasher = Hasher::new();
        match files::hash_file(self.shared.storage(), &file, &mut hasher) {
            Ok(_) => Ok(Verified::check_stream(&found.object, hasher).is_ok()),
            Err(error) => {
                tracing::warn!(object = %found.object, %error, "object cannot be read");
                Ok(false)
            }
        }
    }

    fn move_out(&self, found: &Found) -> Result<(), StoreError> {
        let storage = self.shared.storage();
        let folder = self.shared.layout.name("corrupt");
        files::create_dir(storage, &folder, DIR_MODE)?;
        let target = folder.join(format!("{}-{}", found.object.hex(), unique_name()));
        tracing::warn!(object = %found.object, to = %target.display(), "corrupt object moved out of the store");
        storage.rename(&found.path, &target).map_err(io_error("moving out", &found.path))?;
        self.shared.budget.add(-signed(on_disk(found.metadata.size)));
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

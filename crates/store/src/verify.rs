//! Hashing what the store holds: everything on demand, or what an unclean stop may have damaged.

use std::path::Path;
use std::time::SystemTime;

use tarpon_oci::Digest;

use crate::StoreError;
use crate::files;
use crate::layout::open_existing;
use crate::record::Part;
use crate::store::{Shared, Store};
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
    /// [`ObjectStore::open`](tarpon_fetch::ObjectStore::open) checks what it opens, [`Store::check_image`] the objects of the image,
    /// and [`Store::maintain`] the rest.
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

    fn check_objects(
        &self,
        since: Option<SystemTime>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Checked, StoreError> {
        let mut checked = Checked::default();
        for (_, folder) in fan_out() {
            for found in self.shared.objects_in("objects", &folder)? {
                let is_known = |since| found.metadata.modified < since || self.shared.is_hashed(&found);
                if since.is_some_and(is_known) {
                    continue;
                }
                if !self.shared.check(&found.object, &found.path, found.metadata.size)? {
                    checked.corrupt.push(found.object);
                }
                checked.hashed.objects += 1;
                checked.hashed.bytes += found.metadata.size;
                progress(checked.hashed);
            }
        }
        self.shared.hashed.flush();
        Ok(checked)
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
    fn is_hashed(&self, found: &Found) -> bool {
        self.hashed.has(&found.object, &found.metadata)
    }

    /// Hashes the object, whatever is known of it, and moves it out if it is damaged. One that is gone meanwhile is none of our business.
    pub(crate) fn check(&self, object: &Digest, path: &Path, size: u64) -> Result<bool, StoreError> {
        let Some(file) = open_existing(self.storage(), path)? else { return Ok(true) };
        let is_sound = self.hash_object(object, &file)?;
        if !is_sound {
            self.move_out(object, path, size)?;
        }
        Ok(is_sound)
    }
}

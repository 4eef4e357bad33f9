//! Trees that an older version of tarpon wrote are replaced where they lie: the registry is not asked, and what
//! exists only in this store is not lost. What is in trees the store does not know: [`RenewTree`](crate::RenewTree) writes the new one.
//!
//! The record is replaced first, then the tree. Whoever comes between the two finds an old tree that is, written anew, the one
//! of the record, and completes the work.

use tarpon_oci::Digest;

use crate::StoreError;
use crate::budget::signed;
use crate::evict::RECORD_WAIT;
use crate::files::{self, io_error};
use crate::images::RECORD;
use crate::layout::open_existing;
use crate::map::MappedFile;
use crate::record::{ImageRecord, Part};
use crate::sealed;
use crate::store::{Shared, Store};

impl Store {
    /// Has the tree of an image written anew; `None` if the image is not here or its tree is damaged.
    pub(crate) fn renew_tree(&self, manifest: &Digest) -> Result<Option<ImageRecord>, StoreError> {
        let shared = &*self.shared;
        let _lock = shared.lock_eviction(RECORD_WAIT, "replace the tree that an older version wrote")?;
        // Another process may have done it meanwhile.
        let Some(mut record) = self.record(manifest)? else { return Ok(None) };
        if !record.has_old_tree() {
            return Ok(Some(record));
        }
        let folder = shared.layout.image(manifest);
        let old = record.part(Part::Tree).map(|part| shared.open_part(&folder, part)).transpose()?.flatten();
        let old = old.map(MappedFile::new).transpose().map_err(io_error("mapping", &folder))?;
        let Some(tree) = old.and_then(|old| shared.renewed(&old)) else {
            tracing::warn!(image = %manifest, "the tree of an older version is damaged or cannot be written anew");
            return Ok(None);
        };
        let before = shared.folder_size(&folder)?;
        record.set_tree(&tree);
        let text = sealed::seal(&record).map_err(|error| io_error("describing image", &folder)(error.into()))?;
        files::replace(shared.storage(), &folder, RECORD, &text)
            .and_then(|()| files::replace(shared.storage(), &folder, Part::Tree.file_name(), &tree))
            .map_err(|error| shared.refuse(error))?;
        shared.budget.add(signed(shared.folder_size(&folder)?) - signed(before));
        tracing::info!(image = %manifest, "the tree was of an older version of tarpon and is written anew");
        Ok(Some(record))
    }
}

impl Shared {
    fn renewed(&self, old: &MappedFile) -> Option<Vec<u8>> {
        self.renew_tree.and_then(|renew| renew(old.as_ref()))
    }
}

/// Replaces the tree by the one of the record, if it is that one but for the version that wrote it.
pub(crate) fn complete(shared: &Shared, record: &ImageRecord) -> Result<bool, StoreError> {
    let folder = shared.layout.image(&record.manifest);
    let path = folder.join(Part::Tree.file_name());
    let old = open_existing(shared.storage(), &path)?.map(MappedFile::new).transpose();
    let old = old.map_err(io_error("mapping", &path))?;
    let renewed = old.and_then(|old| shared.renewed(&old));
    let Some(tree) = renewed.filter(|tree| record.part(Part::Tree).is_some_and(|part| part.digest == Digest::of(tree)))
    else {
        return Ok(false);
    };
    files::replace(shared.storage(), &folder, Part::Tree.file_name(), &tree).map_err(|error| shared.refuse(error))?;
    Ok(true)
}

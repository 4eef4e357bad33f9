//! Trees written by an older version of tarpon are replaced in place: without a request to the registry, and without loss
//! of data that exists only in this store. The store does not know the format of trees: [`RenewTree`](crate::RenewTree)
//! writes the new one.
//!
//! The record is replaced first, then the tree. A reader between the two finds an old tree that becomes the record's tree
//! when rewritten, and completes the work.

use tarpon_oci::Digest;

use crate::StoreError;
use crate::budget::signed;
use crate::files::{self, io_error, open_existing};
use crate::layout::RECORD;
use crate::locks::RECORD_WAIT;
use crate::map::MappedFile;
use crate::record::{ImageRecord, Part};
use crate::sealed;
use crate::store::{Shared, Store};

impl Store {
    /// Rewrites the tree of an image; `None` if the image is not local or its tree is damaged.
    pub(crate) fn renew_tree(&self, manifest: &Digest) -> Result<Option<ImageRecord>, StoreError> {
        let shared = &*self.shared;
        shared.before_record_change()?;
        let _lock = shared.lock_eviction(RECORD_WAIT, "replace the tree that an older version wrote")?;
        // Another process may have rewritten it meanwhile.
        let Some(mut record) = self.record(manifest)? else { return Ok(None) };
        if !record.has_old_tree() {
            return Ok(Some(record));
        }
        let folder = shared.layout.image(manifest);
        let old = record.part(Part::Tree).map(|part| shared.hash_part(&folder, part)).transpose()?.flatten();
        let old = old.map(MappedFile::new).transpose().map_err(io_error("mapping", &folder))?;
        let Some(tree) = old.and_then(|old| shared.renewed(&old)) else {
            tracing::warn!(image = %manifest, "the tree of an older version is damaged or cannot be rewritten");
            return Ok(None);
        };
        let before = shared.folder_size(&folder)?;
        record.set_tree(&tree);
        let text = sealed::seal(&record).map_err(|error| io_error("describing image", &folder)(error.into()))?;
        files::replace(shared.storage(), &folder, RECORD, &text)
            .and_then(|()| files::replace(shared.storage(), &folder, Part::Tree.file_name(), &tree))
            .map_err(|error| shared.refuse(error))?;
        shared.budget.add(signed(shared.folder_size(&folder)?) - signed(before));
        tracing::info!(image = %manifest, "the tree was of an older version of tarpon and is rewritten");
        Ok(Some(record))
    }
}

impl Shared {
    fn renewed(&self, old: &MappedFile) -> Option<Vec<u8>> {
        self.renew_tree.and_then(|renew| renew(old.as_ref()))
    }
}

/// Replaces the tree by the record's tree, if the two differ only in the version that wrote them.
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
    shared.before_record_change()?;
    files::replace(shared.storage(), &folder, Part::Tree.file_name(), &tree).map_err(|error| shared.refuse(error))?;
    Ok(true)
}

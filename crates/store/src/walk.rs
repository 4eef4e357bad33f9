//! Walking over all objects, one folder of the fan-out at a time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tarpon_oci::Digest;

use crate::StoreError;
use crate::files;
use crate::layout::object_of;
use crate::storage::Metadata;
use crate::store::Shared;

/// Names of a fan-out: `00` to `ff`.
pub(crate) fn fan_out() -> impl Iterator<Item = (u8, String)> {
    (0..=u8::MAX).map(|first| (first, format!("{first:02x}")))
}

/// A file under `objects` or `partial`.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) object: Digest,
    pub(crate) path: PathBuf,
    pub(crate) metadata: Metadata,
}

impl Shared {
    /// The objects (or partial objects) in one folder of a fan-out, by name. Whatever has another name is not ours.
    pub(crate) fn objects_in(&self, kind: &str, folder: &str) -> Result<Vec<Found>, StoreError> {
        let path = self.layout.name(kind).join(folder);
        let mut names = files::list(self.storage(), &path)?;
        names.sort_unstable();
        Ok(names.iter().filter_map(|name| self.found(folder, &path, name)).collect())
    }

    /// `None` for what is no object, or is gone again.
    fn found(&self, folder: &str, path: &Path, name: &OsStr) -> Option<Found> {
        let object = object_of(OsStr::new(folder), name)?;
        let path = path.join(name);
        let metadata = self.storage.metadata(&path).ok()?;
        Some(Found { object, path, metadata })
    }
}

//! Walks over all objects, one folder of the fan-out at a time.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use tarpon_blob::LogLimit;
use tarpon_oci::Digest;

use crate::StoreError;
use crate::files::{self, io_error};
use crate::layout::object_of;
use crate::objects::read_again;
use crate::storage::Metadata;
use crate::store::Shared;

/// Names of a fan-out: `00` to `ff`.
pub(crate) fn fan_out() -> impl Iterator<Item = (u8, String)> {
    (0..=u8::MAX).map(|first| (first, format!("{first:02x}")))
}

/// A file under `objects` or `partial`.
#[derive(Debug)]
pub(crate) struct ListedFile {
    pub(crate) object: Digest,
    pub(crate) path: PathBuf,
    pub(crate) metadata: Metadata,
}

/// A file under `objects` or `partial` whose metadata the disk does not return.
#[derive(Debug)]
pub(crate) struct Unexamined {
    pub(crate) object: Digest,
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl Unexamined {
    pub(crate) fn into_error(self) -> StoreError {
        io_error("examining", &self.path)(self.error)
    }
}

/// Content of one folder of a fan-out, by name.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) found: Vec<ListedFile>,
    pub(crate) unexamined: Vec<Unexamined>,
}

impl Shared {
    /// The objects (or partial objects) in one folder of a fan-out. Files with other names are not the store's and are
    /// left out, as are files removed meanwhile.
    pub(crate) fn objects_in(&self, kind: &str, folder: &str) -> Result<Listed, StoreError> {
        let path = self.layout.name(kind).join(folder);
        let mut names = files::list(self.storage(), &path)?;
        names.sort_unstable();
        let mut listed = Listed::default();
        for name in &names {
            if let Some(object) = object_of(OsStr::new(folder), name) {
                self.examine(object, path.join(name), &mut listed);
            }
        }
        Ok(listed)
    }

    /// As [`Shared::objects_in`], without unexaminable ones, whose number is logged.
    pub(crate) fn examined_in(&self, kind: &str, folder: &str) -> Result<Vec<ListedFile>, StoreError> {
        static SKIPPED: LogLimit = LogLimit::new();
        let Listed { found, unexamined } = self.objects_in(kind, folder)?;
        if let Some(Unexamined { path, error, .. }) = unexamined.first()
            && let Some(left_out) = SKIPPED.admit()
        {
            let files = unexamined.len();
            tracing::warn!(%error, first = %path.display(), files, "files of the store cannot be examined{left_out}");
        }
        Ok(found)
    }

    fn examine(&self, object: Digest, path: PathBuf, listed: &mut Listed) {
        match read_again(|| self.storage.metadata(&path)) {
            Ok(metadata) => listed.found.push(ListedFile { object, path, metadata }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => listed.unexamined.push(Unexamined { object, path, error }),
        }
    }
}

//! [`Upper`]: where the writes of a mount go.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::MountError;
use crate::spec::Writable;
use crate::table;

/// Begins the name of every temporary upper in the scratch directory.
const PREFIX: &str = "upper-";

/// An upper directory of overlayfs with its work directory on the same disk.
#[derive(Debug)]
pub(crate) struct Upper {
    directory: PathBuf,
    work: PathBuf,
    /// Holds both, and is removed with them.
    temporary: Option<PathBuf>,
}

impl Upper {
    /// Makes what `writable` asks for; temporary ones below `scratch`.
    pub(crate) fn prepare(writable: &Writable, scratch: &Path) -> Result<Option<Self>, MountError> {
        match writable {
            Writable::No => Ok(None),
            Writable::Temporary => Self::temporary(scratch).map(Some),
            Writable::Directory(directory) => Self::kept(directory).map(Some),
        }
    }

    fn temporary(scratch: &Path) -> Result<Self, MountError> {
        let doing = || format!("make a temporary upper directory in {}", scratch.display());
        let parent =
            tempfile::Builder::new().prefix(PREFIX).tempdir_in(scratch).map_err(MountError::io(doing()))?.keep();
        let upper = Self { directory: parent.join("upper"), work: parent.join("work"), temporary: Some(parent) };
        for directory in [&upper.directory, &upper.work] {
            std::fs::create_dir(directory).map_err(MountError::io(doing()))?;
        }
        Ok(upper)
    }

    fn kept(directory: &Path) -> Result<Self, MountError> {
        let doing = || format!("use {} as upper directory", directory.display());
        std::fs::create_dir_all(directory).map_err(MountError::io(doing()))?;
        let directory = directory.canonicalize().map_err(MountError::io(doing()))?;
        let mut name = OsString::from(".");
        name.push(directory.file_name().unwrap_or_default());
        name.push(".tarpon-work");
        let work = directory.with_file_name(name);
        std::fs::create_dir_all(&work).map_err(MountError::io(doing()))?;
        Ok(Self { directory, work, temporary: None })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn work(&self) -> &Path {
        &self.work
    }

    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// The mount is gone and nothing uses it: removes what is not to be kept.
    pub(crate) fn clean_up(&self) {
        let rubbish = self.temporary.as_ref().unwrap_or(&self.work);
        if let Err(error) = std::fs::remove_dir_all(rubbish) {
            tracing::warn!(path = %rubbish.display(), %error, "could not be removed");
        }
    }
}

/// Removes the temporary uppers that an earlier process left in `scratch`, except those that a mount still uses.
pub(crate) fn sweep(scratch: &Path) {
    let mounts = table::mounts().unwrap_or_default();
    for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_upper = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let wanted = format!("upperdir={}", path.join("upper").display());
        if is_upper && !mounts.iter().any(|mount| mount.options.contains(&wanted)) {
            let _gone_next_time = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_upper_goes_with_its_mount_and_an_own_one_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let temporary = Upper::prepare(&Writable::Temporary, scratch.path()).unwrap().unwrap();
        assert!(temporary.work().is_dir());
        temporary.clean_up();
        assert_eq!(scratch.path().read_dir().unwrap().count(), 0);

        let own = scratch.path().join("mine");
        let kept = Upper::prepare(&Writable::Directory(own.clone()), scratch.path()).unwrap().unwrap();
        kept.clean_up();
        let left: Vec<_> = scratch.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [own]);
    }

    #[test]
    fn leftover_uppers_are_swept_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(scratch.path().join("upper-old/upper/file")).unwrap();
        std::fs::create_dir_all(scratch.path().join("socket")).unwrap();
        sweep(scratch.path());
        assert!(!scratch.path().join("upper-old").exists());
        assert!(scratch.path().join("socket").exists());
    }
}

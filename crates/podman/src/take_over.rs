//! Continues what an earlier server left: its mount, with the node ids that the kernel may use.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_fs::Operations;
use tarpon_server::ExhibitHost;

use crate::saved_state::{RestoreError, Save};
use crate::store_fs::StoreFs;

/// The saved state of the file system on a folder, which outlives this server.
pub(crate) struct KeptState {
    host: ExhibitHost,
    name: &'static str,
    /// Which of the file systems that were mounted on the folder is the present one. The others may still be in use.
    present: Mutex<u64>,
}

impl KeptState {
    pub(crate) fn new(host: ExhibitHost, name: &'static str) -> Arc<Self> {
        Arc::new(Self { host, name, present: Mutex::default() })
    }

    /// Keeps the state of a new file system, instead of that of earlier ones.
    pub(crate) fn save(self: &Arc<Self>) -> Save {
        let own = {
            let mut present = self.present.lock();
            *present += 1;
            *present
        };
        // Weak, because the host owns the mount and with it the file system.
        let kept = Arc::downgrade(self);
        Box::new(move |bytes| {
            let Some(kept) = kept.upgrade() else { return };
            let present = kept.present.lock();
            if *present == own {
                kept.host.keep_state(kept.name, bytes);
            }
        })
    }

    /// Keeps nothing: nothing is mounted.
    pub(crate) fn clear(&self) {
        let mut present = self.present.lock();
        *present += 1;
        self.host.keep_state(self.name, &[]);
    }

    /// What an earlier server kept; empty if it kept nothing.
    pub(crate) fn inherited(&self) -> Vec<u8> {
        self.host.inherited_state(self.name).unwrap_or_default()
    }
}

/// Serves the mount that an earlier server left on `folder`, if there is one. `restored`: its file system. Without that, other
/// node ids would have the meanings that the kernel remembers, so the mount is removed, and its readers get an error.
/// `adopt` serves the mount with the files that it gets; if it fails, nothing serves the mount and it ends.
pub(crate) fn take_over<F: Operations, M, E: Display>(
    folder: &Path,
    restored: Result<F, RestoreError>,
    adopt: impl FnOnce(Arc<dyn Operations>) -> Result<Option<M>, E>,
) -> Option<(Arc<F>, M)> {
    let (files, problem) = match restored {
        Ok(files) => (Some(Arc::new(files)), None),
        Err(problem) => (None, Some(problem)),
    };
    let served: Arc<dyn Operations> = match &files {
        Some(files) => files.clone(),
        None => Arc::new(StoreFs::stale()),
    };
    match adopt(served) {
        Ok(mounted) => match (files, mounted?) {
            (Some(files), mounted) => Some((files, mounted)),
            (None, _removed) => {
                let problem = problem.map(|problem| problem.to_string());
                tracing::warn!(folder = %folder.display(), problem, "the mount of an earlier server is removed");
                None
            }
        },
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the mount of an earlier server is not taken over");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tarpon_fs::{Errno, NodeId};
    use tarpon_layer::Timestamp;

    use super::*;
    use crate::store_fs::{Directory, Item};

    fn files() -> StoreFs {
        let root = Directory::of([("f", Item::File("x".into()))]);
        StoreFs::new(root, Timestamp::default(), Box::new(|_| {}))
    }

    fn try_with(restored: Result<StoreFs, RestoreError>, has_mount: bool) -> (bool, bool) {
        let knows_file = Mutex::new(None);
        let adopt = |files: Arc<dyn Operations>| {
            *knows_file.lock() = Some(files.attributes(NodeId(2)) != Err(Errno::Stale));
            Ok::<_, Infallible>(has_mount.then_some(()))
        };
        let taken = take_over(Path::new("/p"), restored, adopt);
        (taken.is_some(), knows_file.into_inner().unwrap())
    }

    #[test]
    fn a_mount_is_served_with_the_restored_files() {
        assert_eq!(try_with(Ok(files()), true), (true, true));
        assert_eq!(try_with(Ok(files()), false), (false, true), "there is none");
    }

    #[test]
    fn a_mount_without_its_node_ids_is_served_as_stale_until_it_is_removed() {
        assert_eq!(try_with(Err(RestoreError::Format), true), (false, false));
        assert_eq!(try_with(Err(RestoreError::Missing), false), (false, false));
    }

    #[test]
    fn a_mount_that_cannot_be_taken_over_is_as_none() {
        let adopt = |_: Arc<dyn Operations>| Err::<Option<()>, _>("no");
        assert!(take_over(Path::new("/p"), Ok(files()), adopt).is_none());
    }
}

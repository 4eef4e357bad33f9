//! The changes that a container made to its image, for readers outside the container.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_spec::runtime::Mount;
use tarpon_oci::Digest;

use super::container_dir::{ContainerDir, Holding, Lock};
use super::containers::Containers;
use super::kept::handle;
use super::record::ContainerRecord;
use crate::oci::{Bundle, Handle, Paused};
use crate::{Error, ErrorKind, Result, ResultExt};
use tarpon_client::ContainerName;

/// How long to wait for another process that holds a container that does not run.
const BUSY: Duration = Duration::from_secs(10);

/// The changes of a container, and its image.
pub struct Changes {
    /// Its upper directory: whole files, and the whiteouts of overlayfs.
    pub upper: PathBuf,
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// The command that was run.
    pub command: Vec<String>,
    /// Paths that are present but not a change of the image.
    pub left_out: LeftOut,
    /// While this lives, a container that has ended is not removed.
    _kept: Option<Lock>,
    /// The handle, if the container runs.
    running: Option<Handle>,
}

/// Parts of an upper directory that are no part of the layer. Paths have no trailing slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Mount points: an empty file or directory there was created for the mount.
    pub mount_points: BTreeSet<Vec<u8>>,
    /// Volumes: data, with everything below.
    pub volumes: BTreeSet<Vec<u8>>,
}

impl Changes {
    /// Pauses the container if it runs. On an error, callers read the changes while they may still change.
    pub fn pause(&self) -> Result<Option<Paused>> {
        self.running.as_ref().map(Handle::pause).transpose()
    }

    /// Whether the changes may still change.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl Containers {
    /// The changes of the container of this name.
    pub fn changes(&self, name: &ContainerName) -> Result<Changes> {
        let (place, record) = self.known(name)?;
        let (kept, running) = hold(&place, &record)?;
        let left_out = left_out(&Bundle::mounts(place.folder())?, &place);
        let ContainerRecord { image, manifest, command, .. } = record;
        Ok(Changes { upper: place.upper(), image, manifest, command, left_out, _kept: kept, running })
    }
}

/// The lock of a container that has ended, or the handle of one that runs. If a container does not run and its lock is taken, another
/// process starts, settles, reads or removes it. That process is waited for, since its changes may disappear meanwhile.
fn hold(place: &ContainerDir, record: &ContainerRecord) -> Result<(Option<Lock>, Option<Handle>)> {
    let gone = || Error::new(ErrorKind::NotFound, "find the container", "it was just removed");
    for patience in [Duration::ZERO, BUSY] {
        let held = place.hold(patience);
        match held.context(ErrorKind::Store, "look whether the container runs")? {
            // Another container may have its name.
            Holding::Ours(lock) if place.is_of(&record.id) => return Ok((Some(lock), None)),
            Holding::Ours(_) | Holding::Gone => return Err(gone()),
            Holding::Theirs => {
                let handle = handle(place, record);
                if handle.is_running()? {
                    handle.resume_if_left();
                    return Ok((None, Some(handle)));
                }
            }
        }
    }
    let cause = format!("it does not run, and another process has held its lock for {} s", BUSY.as_secs());
    let error = Error::new(ErrorKind::Conflict, "hold the container", cause);
    Err(error.hint("it is being started, removed or committed: try again when that is over"))
}

/// Mount points, and volumes, which are directories of the container's own.
fn left_out(mounts: &[Mount], place: &ContainerDir) -> LeftOut {
    let root = place.rootfs();
    let mut left_out = LeftOut::default();
    for mount in mounts {
        let own = mount.source().as_deref().and_then(|source| source.strip_prefix(&root).ok());
        match own {
            Some(inside) => left_out.volumes.insert(bytes(inside)),
            None => left_out.mount_points.insert(bytes(mount.destination().strip_prefix("/").unwrap_or(Path::new("")))),
        };
    }
    left_out
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::container_dir::ContainerDirs;
    use super::super::containers::tests::containers;
    use super::super::record::tests::record;
    use super::*;
    use crate::oci::bind;

    #[test]
    fn volumes_are_known_by_where_they_are_and_all_else_by_where_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let (place, _lock) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        let volume = bind(&place.rootfs().join("var/data"), Path::new("/link/data"), &[]).unwrap();
        let hosts = bind(&place.folder().join("hosts"), Path::new("/etc/hosts"), &[]).unwrap();
        let found = left_out(&[volume, hosts], &place);
        assert_eq!(found.volumes, [b"var/data".to_vec()].into());
        assert_eq!(found.mount_points, [b"etc/hosts".to_vec()].into());
    }
}

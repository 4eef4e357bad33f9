//! What a container made of its image, for whoever reads it from outside.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_spec::runtime::Mount;
use tarpon_oci::Digest;

use super::held::handle;
use super::place::{Holding, Lock, Place};
use super::{ContainerName, ContainerRecord};
use crate::commit::LeftOut;
use crate::container::{Bundle, Handle, Paused};
use crate::{Engine, Error, ErrorKind, Result};

/// How long a container that does not run is waited for while another process is at it.
const BUSY: Duration = Duration::from_secs(10);

/// What a container wrote, and of which image.
pub(crate) struct Changes {
    /// Its upper directory: whole files, and the whiteouts of overlayfs.
    pub(crate) upper: PathBuf,
    /// The image, as the user wrote it.
    pub(crate) image: String,
    /// Digest of its manifest.
    pub(crate) manifest: Digest,
    /// What was run.
    pub(crate) command: Vec<String>,
    /// What is there and no change of the image.
    pub(crate) left_out: LeftOut,
    /// While this lives, one that has ended is not removed.
    _kept: Option<Lock>,
    /// One that runs.
    running: Option<Handle>,
}

impl Changes {
    /// Holds the container still, if it runs. Whoever is told that it cannot be done reads it as it changes.
    pub(crate) fn pause(&self) -> Result<Option<Paused>> {
        self.running.as_ref().map(Handle::pause).transpose()
    }

    /// Whether it may still change.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl Engine {
    /// What the container of this name wrote.
    pub(crate) fn container_changes(&self, name: &ContainerName) -> Result<Changes> {
        let (place, record) = self.known(name)?;
        let (kept, running) = hold(&place, &record)?;
        let left_out = left_out(&Bundle::mounts(place.folder())?, &place);
        let ContainerRecord { image, manifest, command, .. } = record;
        Ok(Changes { upper: place.upper(), image, manifest, command, left_out, _kept: kept, running })
    }
}

/// The lock of a container that has ended, or one that runs. Whoever has the lock of one that does not run starts it, settles it, reads it or
/// removes it: then it is waited for, since what it wrote may go meanwhile.
fn hold(place: &Place, record: &ContainerRecord) -> Result<(Option<Lock>, Option<Handle>)> {
    let gone = || Error::new(ErrorKind::NotFound, "find the container", "it was just removed");
    for patience in [Duration::ZERO, BUSY] {
        let held = place.hold(patience);
        match held.map_err(|error| Error::new(ErrorKind::Store, "look whether the container runs", error))? {
            // There may be another one under its name.
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
    let cause = format!("it does not run, and another process has been at it for {} s", BUSY.as_secs());
    let error = Error::new(ErrorKind::Conflict, "hold the container", cause);
    Err(error.hint("it is being started, removed or committed: try again when that is over"))
}

/// Places that others are mounted on, and volumes, which are directories of the container's own.
fn left_out(mounts: &[Mount], place: &Place) -> LeftOut {
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
    use super::super::place::Containers;
    use super::super::record::tests::record;
    use super::*;
    use crate::EngineOptions;
    use crate::container::bind;

    #[test]
    fn volumes_are_known_by_where_they_are_and_all_else_by_where_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let engine = EngineOptions { store: folder.path().join("store"), server_command: Vec::new() };
        let engine = Engine::open(engine).unwrap();
        let (place, _lock) = Containers::of(engine.store()).create(&record("web")).unwrap();
        let volume = bind(&place.rootfs().join("var/data"), Path::new("/link/data"), &[]).unwrap();
        let hosts = bind(&place.folder().join("hosts"), Path::new("/etc/hosts"), &[]).unwrap();
        let found = left_out(&[volume, hosts], &place);
        assert_eq!(found.volumes, [b"var/data".to_vec()].into());
        assert_eq!(found.mount_points, [b"etc/hosts".to_vec()].into());
    }
}

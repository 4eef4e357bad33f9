//! [`Rootfs`]: an image as a root file system that somebody runs something in, and that goes with its holder.
//!
//! ```text
//! prepare(image) ─► Prepared ─┬─► rootfs ─► path … close        each: a mount of its own with an upper of its own
//!                             ├─► rootfs ─► path … close
//!                             └─► …
//! ```

mod folder;
mod host;

use std::path::{Path, PathBuf};

pub(crate) use folder::Folders;
pub(crate) use host::Host;
use tarpon_mount::{ModeChoice, Writable};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use self::folder::Place;
use crate::image::Prepared;
use crate::protocol::{Backfill, MountRequest, MountStatus};
use crate::{Engine, Error, ErrorKind, Result};

/// How a root file system is to be. The default is what a container has: writable, what is written goes when it is closed, and setuid
/// bits take effect.
#[derive(Debug, Clone, PartialEq)]
pub struct RootfsRequest {
    /// An existing directory to mount it on, which stays. None: one in the store, which goes with it.
    pub directory: Option<PathBuf>,
    /// How it is mounted.
    pub mode: ModeChoice,
    /// Whether and where writes go.
    pub writable: Writable,
    /// Whether setuid and setgid bits take effect.
    pub suid: bool,
    /// Whether device nodes work.
    pub dev: bool,
    /// Whether the rest of the image is brought in the background.
    pub backfill: Backfill,
}

impl Default for RootfsRequest {
    fn default() -> Self {
        Self {
            directory: None,
            mode: ModeChoice::Auto,
            writable: Writable::Temporary,
            suid: true,
            dev: false,
            backfill: Backfill::Off,
        }
    }
}

/// A root file system that is mounted.
///
/// [`Rootfs::close`] unmounts it and says whether that worked. Dropped, it is unmounted too, behind the back of whoever drops it, and what
/// goes wrong goes to the log. One whose process was killed, in a directory of the store, is unmounted by the next engine that makes one there.
#[derive(Debug)]
pub struct Rootfs {
    /// None once it is closed.
    mount: Option<RootMount>,
    path: PathBuf,
    status: MountStatus,
}

/// The mount itself. Dropped, it is unmounted on the spot: that blocks.
#[derive(Debug)]
pub(crate) struct RootMount {
    host: Host,
    place: Place,
    is_over: bool,
}

impl Engine {
    /// Makes a root file system of an image, by the store's server, which is started if none runs, and stays from then on as long as this
    /// engine or a clone of it lives. Takes milliseconds and does not block the runtime; many can be made at the same time. If the
    /// future is dropped, nothing stays mounted.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if the kernel or the user's rights do not allow it, [`ErrorKind::Store`] if the server cannot be had.
    pub async fn rootfs(&self, prepared: &Prepared, request: &RootfsRequest) -> Result<Rootfs> {
        self.rootfs_by(self.client().into(), prepared, request).await
    }

    /// As [`Engine::rootfs`], by this host.
    pub(crate) async fn rootfs_by(&self, host: Host, prepared: &Prepared, request: &RootfsRequest) -> Result<Rootfs> {
        let (engine, prepared, request) = (self.clone(), prepared.clone(), request.clone());
        let made = spawn_blocking(move || {
            engine.rootfs_folders().hold(&host)?;
            let place = match &request.directory {
                Some(directory) => Place::given(directory)?,
                None => engine.rootfs_folders().place(engine.store(), &host)?,
            };
            let wanted = request.of(&prepared, place.path().to_owned());
            let path = place.path().to_owned();
            RootMount::mount(host, place, wanted).map(|(mount, status)| Rootfs { mount: Some(mount), path, status })
        });
        made.await.map_err(|error| Error::new(ErrorKind::Other, "mount", error))?
    }
}

impl RootfsRequest {
    /// The mount of `prepared` on `directory` that this asks for.
    pub(crate) fn of(&self, prepared: &Prepared, directory: PathBuf) -> MountRequest {
        MountRequest {
            mode: self.mode,
            writable: self.writable.clone(),
            suid: self.suid,
            dev: self.dev,
            backfill: self.backfill,
            ..prepared.mount_on(directory)
        }
    }
}

impl Rootfs {
    /// Where it is: an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was mounted, and what had been fetched of its image by then.
    pub fn status(&self) -> &MountStatus {
        &self.status
    }

    /// Unmounts it. Whoever still has files of it open goes on with them. What was written to a temporary upper is gone then.
    ///
    /// # Errors
    /// Something else is mounted in it, or its server cannot be had. Then it stays mounted.
    pub async fn close(mut self) -> Result<()> {
        let Some(mount) = self.mount.take() else { return Ok(()) };
        let closed = spawn_blocking(move || mount.unmount()).await;
        closed.map_err(|error| Error::new(ErrorKind::Other, "unmount", error))?
    }
}

impl Drop for Rootfs {
    fn drop(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        // A closure that a runtime does not come to run is dropped, and the mount with it.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(mount))),
            Err(_) => drop(mount),
        }
    }
}

impl RootMount {
    /// Mounts what is asked for at a directory that is somebody else's.
    pub(crate) fn at(host: impl Into<Host>, request: MountRequest) -> Result<Self> {
        let place = Place::given(&request.mountpoint)?;
        Self::mount(host.into(), place, request).map(|(mount, _)| mount)
    }

    fn mount(host: Host, place: Place, request: MountRequest) -> Result<(Self, MountStatus)> {
        match host.mount(request) {
            Ok(status) => Ok((Self { host, place, is_over: false }, status)),
            Err(error) => {
                place.abandon(&host);
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Unmounts it. It may be unmounted already.
    pub(crate) fn unmount(mut self) -> Result<()> {
        self.end()
    }

    /// Leaves it to somebody else, who will unmount it.
    pub(crate) fn keep(mut self) {
        self.is_over = true;
    }

    fn end(&mut self) -> Result<()> {
        self.is_over = true;
        self.host.unmount(self.path())?;
        self.place.remove();
        Ok(())
    }
}

impl Drop for RootMount {
    fn drop(&mut self) {
        if !self.is_over
            && let Err(error) = self.end()
        {
            tracing::warn!(path = %self.path().display(), %error, "a root file system stays mounted");
        }
    }
}

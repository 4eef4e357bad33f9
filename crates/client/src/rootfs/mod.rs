//! [`Rootfs`]: an image as a root file system, mounted as long as its owner holds it.
//!
//! ```text
//! prepare(image) ─► Prepared ─┬─► rootfs ─► path … close        each: a mount of its own with an upper of its own
//!                             ├─► rootfs ─► path … close
//!                             └─► …
//! ```

mod folder;
mod host;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use folder::Folders;
pub use host::MountHost;
use tarpon_mount::{ModeChoice, Writable};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use self::folder::MountDir;
use crate::protocol::{Backfill, MountRequest, MountStatus};
use crate::{ErrorKind, Result, ResultExt};
use tarpon_images::Prepared;

/// Options of a root file system. The default is that of a container: writable, writes are discarded on close, and setuid bits take effect.
#[derive(Debug, Clone, PartialEq)]
pub struct RootfsRequest {
    /// An existing directory to mount it on, which is kept. `None`: one in the store, which is removed with it.
    pub directory: Option<PathBuf>,
    /// How it is mounted.
    pub mode: ModeChoice,
    /// Whether it is writable, and where writes go.
    pub writable: Writable,
    /// Whether setuid and setgid bits take effect.
    pub suid: bool,
    /// Whether device nodes work.
    pub dev: bool,
    /// Whether the rest of the image is fetched in the background.
    pub backfill: Backfill,
    /// The command that it is for, if it is known: starts by different commands read different files.
    pub command: Vec<String>,
    /// Whether what the start reads is kept for the next start, and what earlier ones read is fetched first.
    pub learn: bool,
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
            command: Vec::new(),
            learn: true,
        }
    }
}

/// A mounted root file system.
///
/// [`Rootfs::close`] unmounts it and returns the result. Dropping it unmounts it in the background and logs errors. If the process is
/// killed, the next engine that creates a directory in the store unmounts what was in one.
#[derive(Debug)]
pub struct Rootfs {
    /// `None` once it is closed.
    mount: Option<RootMount>,
    path: PathBuf,
    status: MountStatus,
}

/// The mount itself. Dropping it unmounts it synchronously: that blocks.
#[derive(Debug)]
pub struct RootMount {
    host: Arc<dyn MountHost>,
    dir: MountDir,
    is_over: bool,
}

impl RootfsRequest {
    /// The mount request for `prepared` on `directory`.
    pub fn of(&self, prepared: &Prepared, directory: PathBuf) -> MountRequest {
        MountRequest {
            mode: self.mode,
            writable: self.writable.clone(),
            suid: self.suid,
            dev: self.dev,
            backfill: self.backfill,
            command: self.command.clone(),
            learn: self.learn,
            ..MountRequest::for_image(prepared, directory)
        }
    }
}

impl Rootfs {
    /// Creates a root file system through `host`, as `Engine::rootfs` does.
    pub async fn mount(
        folders: &Arc<Folders>,
        host: Arc<dyn MountHost>,
        prepared: &Prepared,
        request: &RootfsRequest,
    ) -> Result<Self> {
        let (folders, prepared, request) = (folders.clone(), prepared.clone(), request.clone());
        let made = spawn_blocking(move || {
            folders.hold(&*host)?;
            let dir = match &request.directory {
                Some(directory) => MountDir::given(directory)?,
                None => folders.new_dir(&*host)?,
            };
            let wanted = request.of(&prepared, dir.path().to_owned());
            let path = dir.path().to_owned();
            RootMount::mount(host, dir, wanted).map(|(mount, status)| Self { mount: Some(mount), path, status })
        });
        made.await.context(ErrorKind::Other, "mount")?
    }

    /// The mount point: an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The status after the mount, with the bytes fetched of its image by then.
    pub fn status(&self) -> &MountStatus {
        &self.status
    }

    /// Unmounts it. Programs with open files can go on using them. Writes to a temporary upper are discarded.
    ///
    /// # Errors
    /// Something else is mounted in it, or its server is unavailable. Then it stays mounted.
    pub async fn close(mut self) -> Result<()> {
        let Some(mount) = self.mount.take() else { return Ok(()) };
        let closed = spawn_blocking(move || mount.unmount()).await;
        closed.context(ErrorKind::Other, "unmount")?
    }
}

impl Drop for Rootfs {
    fn drop(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        // If the runtime never runs the closure, it drops it, and the mount with it.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(mount))),
            Err(_) => drop(mount),
        }
    }
}

impl RootMount {
    /// Mounts on a directory of the caller's.
    pub fn at(host: Arc<dyn MountHost>, request: MountRequest) -> Result<Self> {
        let dir = MountDir::given(&request.mountpoint)?;
        Self::mount(host, dir, request).map(|(mount, _)| mount)
    }

    fn mount(host: Arc<dyn MountHost>, dir: MountDir, request: MountRequest) -> Result<(Self, MountStatus)> {
        match host.mount(request) {
            Ok(status) => Ok((Self { host, dir, is_over: false }, status)),
            Err(error) => {
                dir.abandon(&*host);
                Err(error)
            }
        }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts it. It may be unmounted already.
    pub fn unmount(mut self) -> Result<()> {
        self.end()
    }

    /// Keeps it mounted, for another process to unmount.
    pub fn keep(mut self) {
        self.is_over = true;
    }

    fn end(&mut self) -> Result<()> {
        self.is_over = true;
        self.host.unmount(self.path())?;
        self.dir.remove();
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

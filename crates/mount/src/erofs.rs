//! EROFS mounts of an image in a file.
//!
//! Linux 6.12 and newer mount the file itself, if `CONFIG_EROFS_FS_BACKED_BY_FILE` is set. Other kernels mount block devices
//! alone: there a loop device is put over the file.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::kernel::{Context, StepError};
use crate::loop_device::LoopDevice;
use crate::overlay::INNER;

/// Environment variable: `loop` mounts through loop devices also where the kernel mounts files, to measure or to try it.
const VARIABLE: &str = "TARPON_EROFS";

/// What the kernel mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    File,
    LoopDevice,
}

impl Backing {
    /// What is tried first.
    pub(crate) fn first() -> Self {
        if std::env::var_os(VARIABLE).is_some_and(|value| value == "loop") { Self::LoopDevice } else { Self::File }
    }
}

/// Mounts the image in `image`, read-only and detached; on kernels that mount no files, from a loop device. Nothing outlives
/// the mount. Returns what was mounted, too.
pub(crate) fn mount(image: &File, first: Backing) -> Result<(OwnedFd, Backing), StepError> {
    if first == Backing::File {
        // By descriptor, so that the checked file is the mounted file.
        match mount_source(PathBuf::from(format!("/proc/self/fd/{}", image.as_raw_fd())).as_os_str()) {
            Err(error) if error.errno() == Errno::NOTBLK => {}
            mounted => return mounted.map(|mount| (mount, Backing::File)),
        }
    }
    let device = LoopDevice::over(image.as_fd())?;
    mount_source(device.path().as_os_str()).map(|mount| (mount, Backing::LoopDevice))
}

fn mount_source(source: &OsStr) -> Result<OwnedFd, StepError> {
    let context = Context::open("erofs")?;
    context.text("source", source)?.flag("ro")?;
    context.mount(INNER)
}

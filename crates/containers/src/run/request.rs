//! [`RunRequest`]: which container to run, and how.

use std::ffi::OsString;
use std::path::PathBuf;

use tarpon_images::ImageRequest;
use tarpon_mount::ModeChoice;

use crate::oci::ContainerOptions;
use tarpon_client::ContainerName;
use tarpon_client::protocol::Backfill;

/// A request to run a container.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The image.
    pub image: ImageRequest,
    /// How to mount it.
    pub mode: ModeChoice,
    /// Whether the rest of the image is fetched in the background.
    pub backfill: Backfill,
    /// Whether what the start reads is kept for the next start, and what earlier ones read is fetched first.
    pub learn: bool,
    /// Deviations from the image config. System calls are filtered if that is requested and the runtime supports it.
    pub options: ContainerOptions,
    /// The container's name.
    pub name: Option<ContainerName>,
    /// A new file that the name is written to.
    pub name_file: Option<PathBuf>,
    /// Whether to remove it when it ends.
    pub remove: bool,
    /// Whether to return when the container runs, and keep its output in a log.
    pub detach: bool,
    /// Whether it gets this process's standard input.
    pub input: bool,
    /// The stop signal, instead of the image's.
    pub stop_signal: Option<String>,
    /// The OCI runtime; `None` to find one.
    pub runtime: Option<PathBuf>,
    /// The command line that runs [`Containers::keep`](super::Containers::keep), to which the name is appended. Needed only for `detach`.
    pub keeper_command: Vec<OsString>,
}

/// The result of running a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOutcome {
    /// It has ended with this exit code.
    Exited(u8),
    /// It runs, under this name.
    Detached(ContainerName),
}

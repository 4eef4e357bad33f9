//! The life of a container: run, list, stop, remove.
//!
//! ```text
//! prepare ─► directory + lock ─► mount (upper of its own) ─► bundle ─► runtime ─► … ─► unmount ─► exited | removed
//!            └────────────── Held: dropped here, nothing is left ────────┘
//! ```
//!
//! One process keeps the container from the creation of its directory to its end, and holds its lock as long. That is the process asked to
//! run it, or for a detached container a keeper that inherits the lock. So the kernel shows whether the keeper was killed.

mod attend;
pub(crate) mod changes;
mod container_dir;
mod exec;
mod failure;
mod find;
mod held;
mod keep;
mod life;
mod log;
mod record;
mod signals;
mod wait;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tarpon_mount::ModeChoice;

pub use self::exec::ExecRequest;
pub use self::failure::RunError;
use self::held::Held;
pub(crate) use self::life::may_run_on;
pub use self::life::{ContainerStatus, Standing};
pub use self::log::{LogLine, LogTime, LogWish, Output};
pub use self::record::{ContainerRecord, ContainerState};
pub use self::signals::{Signals, signal_name};
use crate::container::{ContainerOptions, Runtime};
use crate::{Cause, Engine, Error, ErrorKind, Result};
use tarpon_client::ContainerName;
use tarpon_client::protocol::Backfill;
use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Prepared};

/// A request to run a container.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The image.
    pub image: ImageRequest,
    /// How to mount it.
    pub mode: ModeChoice,
    /// Whether the rest of the image is fetched in the background.
    pub backfill: Backfill,
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
    /// The command line that runs [`Engine::keep`], to which the name is appended. Needed only for `detach`.
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

impl Engine {
    /// Runs a container: in the foreground until it ends, or detached until it has started.
    ///
    /// # Errors
    /// The container did not start. Then nothing of it is left.
    pub async fn run(
        &self,
        request: &RunRequest,
        signals: &mut Signals,
        progress: &dyn Progress,
    ) -> std::result::Result<RunOutcome, RunError> {
        let runtime = self.check_run(request)?;
        let prepared = tokio::select! {
            prepared = self.prepare_to_mount(&request.image, progress) => prepared?,
            () = signals.asked_to_stop() => return Err(RunError::interrupted()),
        };
        self.run_on(request, prepared, runtime, signals).await
    }

    /// As [`Engine::run`], of a prepared image. The image name is not resolved again.
    pub async fn run_prepared(
        &self,
        request: &RunRequest,
        prepared: Prepared,
        signals: &mut Signals,
    ) -> std::result::Result<RunOutcome, RunError> {
        let runtime = self.check_run(request)?;
        self.run_on(request, prepared, runtime, signals).await
    }

    /// Checks that need nothing fetched.
    fn check_run(&self, request: &RunRequest) -> Result<Runtime> {
        check_user()?;
        let runtime = Runtime::find(request.runtime.as_deref())?;
        request.name_file.as_deref().map_or(Ok(()), NameFile::check)?;
        request.name.as_ref().map_or(Ok(()), |name| self.check_container_name(name))?;
        Ok(runtime)
    }

    async fn run_on(
        &self,
        request: &RunRequest,
        prepared: Prepared,
        runtime: Runtime,
        signals: &mut Signals,
    ) -> std::result::Result<RunOutcome, RunError> {
        let (engine, wanted) = (self.clone(), request.clone());
        let made = tokio::task::spawn_blocking(move || Held::make(engine, &wanted, &prepared, &runtime));
        let held = made.await.map_err(|error| RunError::failed("make the container", error))??;
        let named = request.name_file.as_deref().map(|file| NameFile::write(file, &held.record().name)).transpose()?;
        if signals.were_asked_to_stop() {
            return Err(tokio::task::spawn_blocking(|| held.remove()).await.map_or_else(
                |error| RunError::failed("remove the container", error),
                |removed| removed.map_or_else(RunError::from, |()| RunError::interrupted()),
            ));
        }
        let outcome = if request.detach {
            keep::hand_over(held, request, signals).await
        } else {
            attend::attended(held, signals).await
        };
        if outcome.is_ok() {
            named.into_iter().for_each(NameFile::keep);
        }
        outcome
    }
}

/// The file with the name of a container. It is removed on drop, so that a container that did not start leaves nothing.
struct NameFile(Option<PathBuf>);

impl NameFile {
    /// # Errors
    /// A file exists at this path.
    fn check(file: &Path) -> Result<()> {
        match file.symlink_metadata() {
            Ok(_) => Err(Self::failed(file, "there is a file already, perhaps of another container")),
            Err(_) => Ok(()),
        }
    }

    fn write(file: &Path, name: &ContainerName) -> Result<Self> {
        let mut made = std::fs::File::create_new(file).map_err(|error| Self::failed(file, error))?;
        let named = Self(Some(file.to_owned()));
        std::io::Write::write_all(&mut made, name.as_str().as_bytes()).map_err(|error| Self::failed(file, error))?;
        Ok(named)
    }

    fn failed(file: &Path, cause: impl Into<Cause>) -> Error {
        Error::new(ErrorKind::Other, format!("write the container's name into {}", file.display()), cause)
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NameFile {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _gone_already = std::fs::remove_file(file);
        }
    }
}

/// Mounting, and confining a container's processes, requires root.
fn check_user() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let cause = "it needs root: containers of other users are not offered";
    Err(Error::new(ErrorKind::CannotMount, "run a container", cause)
        .hint("`tarpon mount` works without root; so do `podman` and `tarpon convert`"))
}

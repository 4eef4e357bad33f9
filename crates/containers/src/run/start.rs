//! Runs a container: prepares its image, creates it, and attends it or hands it over to a keeper.

use std::path::{Path, PathBuf};

use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Prepared};

use super::attend;
use super::containers::Containers;
use super::failure::RunError;
use super::keep;
use super::kept::KeptContainer;
use super::request::{RunOutcome, RunRequest};
use super::signals::Signals;
use crate::oci::Runtime;
use crate::{Cause, Error, ErrorKind, Result};
use tarpon_client::ContainerName;
use tarpon_client::prepare_to_mount;

impl Containers {
    /// Runs a container: in the foreground until it ends, or detached until it has started.
    ///
    /// # Errors
    /// The container did not start. Then nothing of it is left, unless the hint names the command that removes it.
    pub async fn run(
        &self,
        request: &RunRequest,
        signals: &mut Signals,
        progress: &dyn Progress,
    ) -> std::result::Result<RunOutcome, RunError> {
        let runtime = self.check_run(request)?;
        let image = ImageRequest { starts: true, ..request.image.clone() };
        let prepared = tokio::select! {
            prepared = prepare_to_mount(self.images(), self.client(), &image, progress) => prepared?,
            () = signals.asked_to_stop() => return Err(RunError::interrupted()),
        };
        self.run_on(request, prepared, runtime, signals).await
    }

    /// As [`Containers::run`], of a prepared image. The image name is not resolved again.
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
        request.options.network.check()?;
        request.name_file.as_deref().map_or(Ok(()), NameFile::check)?;
        request.name.as_ref().map_or(Ok(()), |name| self.check_name(name))?;
        Ok(runtime)
    }

    async fn run_on(
        &self,
        request: &RunRequest,
        prepared: Prepared,
        runtime: Runtime,
        signals: &mut Signals,
    ) -> std::result::Result<RunOutcome, RunError> {
        let (containers, wanted) = (self.clone(), request.clone());
        let made = tokio::task::spawn_blocking(move || KeptContainer::make(containers, &wanted, &prepared, &runtime));
        let container = made.await.map_err(|error| RunError::failed("make the container", error))??;
        let named =
            request.name_file.as_deref().map(|file| NameFile::write(file, &container.record().name)).transpose()?;
        if signals.were_asked_to_stop() {
            return Err(tokio::task::spawn_blocking(|| container.remove()).await.map_or_else(
                |error| RunError::failed("remove the container", error),
                |removed| removed.map_or_else(RunError::from, |()| RunError::interrupted()),
            ));
        }
        let outcome = if request.detach {
            keep::hand_over(container, &request.keeper_command, signals).await
        } else {
            attend::attended(container, signals).await
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

/// Mounting, and confining a container's processes, requires root, if only of a user namespace.
fn check_user() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let cause = "this process is not root, of the host or of a user namespace";
    Err(Error::new(ErrorKind::CannotMount, "run a container", cause).hint(
        "a daemon of an ordinary user runs containers if it is in a user namespace: tarpon unshare tarpon daemon",
    ))
}

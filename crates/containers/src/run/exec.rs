//! Runs another process in a running container.

use tarpon_store::private;

use super::attend::{aside, exit_code, follow};
use super::containers::Containers;
use super::failure::RunError;
use super::kept::handle;
use super::signals::Signals;
use super::status::{ContainerStatus, Lifecycle};
use crate::oci::{AnotherProcess, Bundle};
use crate::{Error, ErrorKind, ResultExt};
use tarpon_client::ContainerName;

const STEP: &str = "run a process in the container";

/// A request to run a process in a container.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// The command to run.
    pub command: Vec<String>,
    /// `NAME=VALUE`, in addition to or instead of the container's.
    pub env: Vec<String>,
    /// The working directory, instead of the container's.
    pub directory: Option<String>,
    /// `USER[:GROUP]` instead of the container's.
    pub user: Option<String>,
    /// Whether it gets this terminal.
    pub terminal: bool,
    /// Whether it gets this process's standard input.
    pub input: bool,
}

impl Containers {
    /// Runs another process in a running container, in the foreground of this process. Returns its exit code.
    pub async fn exec(
        &self,
        name: &ContainerName,
        request: &ExecRequest,
        signals: &mut Signals,
    ) -> Result<u8, RunError> {
        let (place, record) = self.known(name)?;
        if ContainerStatus::of(name.clone(), &place).standing != Lifecycle::Running {
            return Err(RunError::failed(STEP, "the container does not run"));
        }
        // Concurrent calls must not read each other's files.
        let folder = tempfile::Builder::new().prefix("exec-").tempdir_in(place.folder());
        let folder = folder.context(ErrorKind::Store, STEP)?;
        let [log, pid, file] = ["log", "pid", "process.json"].map(|name| folder.path().join(name));
        let process = request.process().beside(Bundle::process(place.folder())?, &place.rootfs());
        let process = process.map_err(|cause| Error::new(ErrorKind::Refused, STEP, cause))?;
        let written =
            serde_json::to_vec(&process).map_err(Into::into).and_then(|text| private::write_volatile(&file, &text));
        written.context(ErrorKind::Store, STEP)?;
        let handle = handle(&place, &record);
        handle.resume_if_left();
        let command = handle.exec(&file, &pid, &log);
        let mut command = tokio::process::Command::from(command);
        command.stdin(if request.input { std::process::Stdio::inherit() } else { std::process::Stdio::null() });
        aside(&mut command, request.terminal);
        let child = command.spawn().map_err(|error| RunError::failed("start the runtime", error))?;
        let ended = follow(child, &pid, signals, |_| ()).await?;
        exit_code(ended, STEP, &log)
    }
}

impl ExecRequest {
    fn process(&self) -> AnotherProcess<'_> {
        AnotherProcess {
            args: &self.command,
            env: &self.env,
            directory: self.directory.as_deref(),
            user: self.user.as_deref(),
            terminal: self.terminal,
        }
    }
}

//! Another process in a container that runs.

use super::attend::{aside, exit_code, follow};
use super::held::handle;
use super::life::{ContainerStatus, Standing};
use super::signals::Signals;
use super::{ContainerName, RunError};
use crate::container::find_user;
use crate::{Engine, Error, ErrorKind};

const STEP: &str = "run a process in the container";

/// A process to be run in a container.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// What to run.
    pub command: Vec<String>,
    /// `NAME=VALUE`, beside or instead of the container's.
    pub env: Vec<String>,
    /// Where it starts, instead of where the container did.
    pub directory: Option<String>,
    /// `USER[:GROUP]` instead of the container's.
    pub user: Option<String>,
    /// Whether it has this terminal.
    pub terminal: bool,
    /// Whether it has this process's standard input.
    pub input: bool,
}

impl Engine {
    /// Runs another process in a container that runs, in the place of this process; its exit code.
    pub async fn exec(
        &self,
        name: &ContainerName,
        request: &ExecRequest,
        signals: &mut Signals,
    ) -> Result<u8, RunError> {
        let (place, record) = self.known(name)?;
        if ContainerStatus::of(name.clone(), &place).standing != Standing::Running {
            return Err(RunError::failed(STEP, "the container does not run"));
        }
        // Two at a time must not read each other's.
        let folder = tempfile::Builder::new().prefix("exec-").tempdir_in(place.folder());
        let folder = folder.map_err(|error| Error::new(ErrorKind::Store, STEP, error))?;
        let (log, pid) = (folder.path().join("log"), folder.path().join("pid"));
        let mut options = vec![format!("--pid-file={}", pid.display())];
        options.extend(request.options(&place.rootfs())?);
        let command = handle(&place, &record).exec(&log, &options, &request.command);
        let mut command = tokio::process::Command::from(command);
        command.stdin(if request.input { std::process::Stdio::inherit() } else { std::process::Stdio::null() });
        aside(&mut command, request.terminal);
        let child = command.spawn().map_err(|error| RunError::failed("start the runtime", error))?;
        let ended = follow(child, &pid, signals, |_| ()).await?;
        exit_code(ended, STEP, &log)
    }
}

impl ExecRequest {
    /// As both runtimes take them.
    fn options(&self, root: &std::path::Path) -> Result<Vec<String>, RunError> {
        let mut options = Vec::new();
        if self.terminal {
            options.extend(["--tty".to_owned(), "--env=TERM=xterm".to_owned()]);
        }
        options.extend(self.env.iter().map(|variable| format!("--env={variable}")));
        options.extend(self.directory.iter().map(|directory| format!("--cwd={directory}")));
        if let Some(user) = &self.user {
            let user = find_user(root, user).map_err(|cause| Error::new(ErrorKind::Refused, STEP, cause))?;
            options.push(format!("--user={}:{}", user.uid, user.gid));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_process_is_said_to_the_runtime() {
        let root = tempfile::tempdir().unwrap();
        let request = ExecRequest {
            env: vec!["A=1".into()],
            directory: Some("/tmp".into()),
            user: Some("7:8".into()),
            terminal: true,
            ..ExecRequest::default()
        };
        let expected = ["--tty", "--env=TERM=xterm", "--env=A=1", "--cwd=/tmp", "--user=7:8"];
        assert_eq!(request.options(root.path()).unwrap(), expected);
        let unknown = ExecRequest { user: Some("nobody".into()), ..ExecRequest::default() };
        assert!(unknown.options(root.path()).unwrap_err().error.cause.contains("nobody"));
    }
}

//! [`Runtime`]: crun or runc, and a container in its hands.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::Bundle;
use crate::{Error, ErrorKind, Result};

/// Superblock number of cgroup v2.
const CGROUP2: i64 = 0x6367_7270;

/// How often a stopping container is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// An OCI runtime.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    program: PathBuf,
}

/// Where the container's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdio {
    /// To this process's own.
    Inherit,
    /// All of it to this process's standard error.
    Errors,
    /// To pipes, for somebody to read.
    Piped,
}

/// A container that was started. Dropped, it is killed and forgotten by the runtime.
pub(crate) struct Running {
    runtime: Runtime,
    id: String,
    state: PathBuf,
    child: Child,
    ended: Option<ExitStatus>,
    _bundle: Bundle,
}

impl Runtime {
    /// The runtime that the user names, or the one that works here: crun, which starts faster, except where cgroups are not
    /// those that it takes.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self> {
        if let Some(program) = named {
            let found = on_path(program.as_os_str()).map(|program| Self { program });
            return found.ok_or_else(|| missing(format!("there is no {}", program.display())));
        }
        let names = if has_cgroup2() { ["crun", "runc"] } else { ["runc", "crun"] };
        let found = names.into_iter().find_map(|name| on_path(OsStr::new(name)));
        found.map(|program| Self { program }).ok_or_else(|| missing("neither crun nor runc is installed".to_owned()))
    }

    /// Starts a container. `state`: a directory for what the runtime has to remember.
    pub(crate) fn run(&self, bundle: Bundle, id: &str, state: &Path, stdio: Stdio) -> Result<Running> {
        let (out, err) = match stdio {
            Stdio::Inherit => (std::process::Stdio::inherit(), std::process::Stdio::inherit()),
            Stdio::Errors => {
                let out = std::io::stderr().as_fd().try_clone_to_owned().map_err(|error| failed(error.to_string()))?;
                (out.into(), std::process::Stdio::inherit())
            }
            Stdio::Piped => (std::process::Stdio::piped(), std::process::Stdio::piped()),
        };
        let child = self
            .command(state)
            .args([OsStr::new("run"), OsStr::new("--bundle"), bundle.path().as_os_str(), OsStr::new(id)])
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        let child = child.map_err(|error| failed(format!("{}: {error}", self.program.display())))?;
        let (runtime, id, state) = (self.clone(), id.to_owned(), state.to_owned());
        Ok(Running { runtime, id, state, child, ended: None, _bundle: bundle })
    }

    fn command(&self, state: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(state);
        command
    }
}

impl Running {
    /// The pipes of the container's output, once.
    pub(crate) fn output(&mut self) -> (Option<std::process::ChildStdout>, Option<std::process::ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().map_err(|error| failed(error.to_string()))?;
        }
        Ok(self.ended)
    }

    /// Asks it to stop with `signal`, and kills it when it has not after `patience`.
    pub(crate) fn stop(&mut self, signal: &str, patience: Duration) -> Result<()> {
        self.signal(signal);
        let began = Instant::now();
        while self.ended()?.is_none() && began.elapsed() < patience {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn signal(&self, signal: &str) {
        let sent = self.runtime.command(&self.state).args(["kill", &self.id, signal]).output();
        if let Ok(output) = &sent
            && !output.status.success()
        {
            tracing::debug!(problem = %String::from_utf8_lossy(&output.stderr), "the container takes no signal");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.ended(), Ok(Some(_))) {
            self.signal("KILL");
            let _status = self.child.wait();
        }
        // What has ended by itself the runtime has forgotten by itself.
        let _forgotten = self.runtime.command(&self.state).args(["delete", "--force", &self.id]).output();
    }
}

fn has_cgroup2() -> bool {
    rustix::fs::statfs("/sys/fs/cgroup").is_ok_and(|fs| fs.f_type == CGROUP2)
}

fn on_path(program: &OsStr) -> Option<PathBuf> {
    let direct = PathBuf::from(program);
    if direct.components().count() > 1 {
        return direct.exists().then_some(direct);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn failed(cause: String) -> Error {
    Error::new(ErrorKind::Other, "run the container", cause)
}

fn missing(cause: String) -> Error {
    Error::new(ErrorKind::NotFound, "find an OCI runtime", cause)
        .hint("install crun or runc, or name one with --runtime")
}

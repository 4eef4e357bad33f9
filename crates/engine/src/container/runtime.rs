//! [`Runtime`]: crun or runc, and a container in its hands.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use super::Bundle;
use crate::{Error, ErrorKind, Result};

/// By these variables systemd talks to its services.
const MANAGER: [&str; 4] = ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

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

/// A container, as its runtime knows it.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    runtime: Runtime,
    id: String,
    /// What the runtime remembers is in there.
    state: PathBuf,
}

/// A container that was started. Dropped, it is killed and forgotten by the runtime.
pub(crate) struct Running {
    handle: Handle,
    child: Child,
    ended: Option<ExitStatus>,
}

/// The runtime that runs containers here, in words: its path, and whether it filters system calls.
///
/// # Errors
/// There is none.
pub fn oci_runtime() -> Result<String> {
    let runtime = Runtime::find(None)?;
    let filter = match runtime.has_seccomp() {
        Ok(true) => "filters system calls",
        Ok(false) => "was built without seccomp",
        Err(_) => "does not say what it was built with",
    };
    Ok(format!("{} {filter}", runtime.program.display()))
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

    /// The program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Whether it was built to filter system calls: both say so with their version.
    ///
    /// # Errors
    /// It cannot be asked.
    pub(crate) fn has_seccomp(&self) -> Result<bool> {
        let output = Command::new(&self.program).arg("--version").stdin(std::process::Stdio::null()).output();
        let step = "ask the runtime whether it filters system calls";
        let cannot = |cause: String| {
            let error = Error::new(ErrorKind::Other, step, format!("{} --version: {cause}", self.program.display()));
            error.hint("name another runtime with --runtime")
        };
        let output = output.map_err(|error| cannot(error.to_string()))?;
        if !output.status.success() {
            return Err(cannot(output.status.to_string()));
        }
        let said = String::from_utf8_lossy(&output.stdout).to_ascii_lowercase();
        Ok(said.contains("libseccomp:") || said.contains("+seccomp"))
    }

    /// The one that a container was started with.
    pub(crate) fn of(program: PathBuf) -> Self {
        Self { program }
    }

    /// A container of this name. `state`: a directory for what the runtime has to remember of it.
    pub(crate) fn container(&self, id: &str, state: &Path) -> Handle {
        Handle { runtime: self.clone(), id: id.to_owned(), state: state.to_owned() }
    }
}

impl Handle {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime.program);
        // What a service manager has said to us is not said to a container: runtimes pass these on.
        for variable in MANAGER {
            command.env_remove(variable);
        }
        command.arg("--root").arg(&self.state);
        command
    }

    /// The command that starts the container and goes on until it has ended, with its exit code. `pid`: a file that says that the
    /// container runs. `log`: a file that says why it does not.
    pub(crate) fn run(&self, bundle: &Path, pid: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--bundle"]).arg(bundle);
        command.arg("--pid-file").arg(pid).arg(&self.id);
        command
    }

    /// The command that runs another process in the container: the one that the file `process` describes, which, other than a command
    /// line, not everybody reads.
    pub(crate) fn exec(&self, process: &Path, pid: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "exec", "--process"]).arg(process);
        command.arg("--pid-file").arg(pid).arg(&self.id);
        command
    }

    /// Starts the container, for as long as the value lives.
    pub(crate) fn start(self, bundle: &Bundle, stdio: Stdio) -> Result<Running> {
        let (out, err) = match stdio {
            Stdio::Inherit => (std::process::Stdio::inherit(), std::process::Stdio::inherit()),
            Stdio::Errors => {
                let out = std::io::stderr().as_fd().try_clone_to_owned().map_err(|error| failed(error.to_string()))?;
                (out.into(), std::process::Stdio::inherit())
            }
            Stdio::Piped => (std::process::Stdio::piped(), std::process::Stdio::piped()),
        };
        let child = self
            .command()
            .args([OsStr::new("run"), OsStr::new("--bundle"), bundle.path().as_os_str(), OsStr::new(&self.id)])
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        let child = child.map_err(|error| failed(format!("{}: {error}", self.runtime.program.display())))?;
        Ok(Running { handle: self, child, ended: None })
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The runtime's word why not: it does not run, or there is no such signal.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let said = |cause: String| Error::new(ErrorKind::Other, "send a signal to the container", cause);
        let output = self.command().args(["kill", &self.id, signal]).output();
        let output = output.map_err(|error| said(format!("{}: {error}", self.runtime.program.display())))?;
        if output.status.success() {
            return Ok(());
        }
        Err(said(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Whether the runtime remembers anything of it. Both have a directory of its name for as long as there is something to it.
    fn is_remembered(&self) -> bool {
        self.state.join(&self.id).symlink_metadata().is_ok()
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// The runtime has something of it, and cannot be asked: then it may well run.
    pub(crate) fn is_running(&self) -> Result<bool> {
        Ok(self.status()?.is_some_and(|status| status != "stopped"))
    }

    /// What the runtime calls its state; `None`: it remembers nothing of it.
    pub(super) fn status(&self) -> Result<Option<String>> {
        #[derive(serde::Deserialize)]
        struct State {
            status: String,
        }
        if !self.is_remembered() {
            return Ok(None);
        }
        let output = self.ask("ask the runtime for the container", &["state", &self.id])?;
        match serde_json::from_slice::<State>(&output.stdout) {
            Ok(state) => Ok(Some(state.status)),
            Err(_) if !self.is_remembered() => Ok(None),
            Err(_) => Err(said_no("ask the runtime for the container", &output)),
        }
    }

    /// Makes the runtime forget it, and kills what is left of it.
    ///
    /// # Errors
    /// The runtime cannot be started, or still has something of it: then it may well run.
    pub(crate) fn forget(&self) -> Result<()> {
        const STEP: &str = "have the runtime end the container";
        // What has ended by itself the runtime has forgotten by itself.
        if !self.is_remembered() {
            return Ok(());
        }
        let output = self.ask(STEP, &["delete", "--force", &self.id])?;
        if output.status.success() || !self.is_remembered() { Ok(()) } else { Err(said_no(STEP, &output)) }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// What the runtime remembers is in there.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    pub(super) fn ask(&self, step: &str, words: &[&str]) -> Result<Output> {
        let output = self.command().args(words).stdin(std::process::Stdio::null()).output();
        output.map_err(|error| {
            let cause = format!("{}: {error}", self.runtime.program.display());
            Error::new(ErrorKind::Other, step, cause).hint("the container may still run: bring its runtime back first")
        })
    }
}

/// What a runtime says when it fails.
pub(super) fn said_no(step: &str, output: &Output) -> Error {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let cause = if said.is_empty() { format!("the runtime failed without a word ({})", output.status) } else { said };
    Error::new(ErrorKind::Other, step, cause)
}

/// Makes runtimes forget every container that the directory `state` has something of, and kills what is left: for a container of which
/// nothing else is known.
///
/// # Errors
/// The runtime that it belongs to cannot be started, or does not do it.
pub(crate) fn forget_all(state: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::Store, "look for what the runtime has", error);
    let entries = match std::fs::read_dir(state) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let has = |name: &str| entry.path().join(name).exists();
        // Each knows only its own: the other one would take them for nothing, and forget them as they run.
        let owner = [("state.json", "runc"), ("status", "crun")].into_iter().find(|(file, _)| has(file));
        if let Some((_, runtime)) = owner {
            let runtime = Runtime::find(Some(Path::new(runtime)))?;
            runtime.container(&entry.file_name().to_string_lossy(), state).forget()?;
        }
    }
    Ok(())
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
        self.signal_or_log(signal);
        let began = Instant::now();
        while self.ended()?.is_none() && began.elapsed() < patience {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn signal_or_log(&self, signal: &str) {
        if let Err(error) = self.handle.signal(signal) {
            tracing::debug!(%error, "the container takes no signal");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.ended(), Ok(Some(_))) {
            self.signal_or_log("KILL");
            let _status = self.child.wait();
        }
        if let Err(error) = self.handle.forget() {
            tracing::warn!(%error, "something of a container stays behind");
        }
    }
}

pub(super) fn has_cgroup2() -> bool {
    rustix::fs::statfs("/sys/fs/cgroup").is_ok_and(|fs| fs.f_type == CGROUP2)
}

fn on_path(program: &OsStr) -> Option<PathBuf> {
    let found = if Path::new(program).components().count() > 1 {
        Some(PathBuf::from(program)).filter(|direct| direct.exists())
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
    };
    // Others use it later, from another directory.
    std::path::absolute(found?).ok()
}

fn failed(cause: String) -> Error {
    Error::new(ErrorKind::Other, "run the container", cause)
}

fn missing(cause: String) -> Error {
    Error::new(ErrorKind::NotFound, "find an OCI runtime", cause)
        .hint("install crun or runc, or name one with --runtime")
}

#[cfg(test)]
pub(super) mod tests {
    use tarpon_testkit::descriptors::write_program;

    use super::*;

    /// A runtime that does what a script says, and a container that it has something of.
    pub(in crate::container) fn container(folder: &Path, script: &str) -> Handle {
        let (program, state) = (folder.join("runtime"), folder.join("state"));
        write_program(&program, &format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::create_dir_all(state.join("box")).unwrap();
        Runtime::of(program).container("box", &state)
    }

    #[test]
    fn a_runtime_is_found_for_whoever_is_in_another_directory() {
        let named = Path::new("src/../Cargo.toml");
        let found = Runtime::find(Some(named)).unwrap();
        assert!(found.program().is_absolute() && found.program().exists(), "{found:?}");
        let missing = Runtime::find(Some(Path::new("./nonexistent"))).unwrap_err();
        assert!(missing.cause.contains("./nonexistent") && missing.hint.is_some());
    }

    #[test]
    fn a_container_whose_runtime_cannot_be_asked_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let failing = container(folder.path(), "echo broken >&2; exit 1");
        assert_eq!(failing.is_running().unwrap_err().cause, "broken");
        assert_eq!(failing.forget().unwrap_err().cause, "broken");
        let state = folder.path().join("state");
        let missing = Runtime::of("/nonexistent/runc".into()).container("box", &state);
        let error = missing.forget().unwrap_err();
        assert!(error.cause.contains("/nonexistent/runc") && error.hint.unwrap().contains("may still run"));
        assert!(missing.is_running().is_err());
        // Nothing is left that could run.
        std::fs::remove_dir(state.join("box")).unwrap();
        assert!(missing.forget().is_ok() && !missing.is_running().unwrap());
    }

    #[test]
    fn a_runtime_says_whether_it_filters_or_nobody_knows() {
        let folder = tempfile::tempdir().unwrap();
        for (script, answer) in [("echo libseccomp: 2.5.4", Some(true)), ("echo +CAP", Some(false)), ("exit 1", None)] {
            let runtime = container(folder.path(), script).runtime;
            assert_eq!(runtime.has_seccomp().ok(), answer, "{script}");
        }
        let error = Runtime::of("/nonexistent/runc".into()).has_seccomp().unwrap_err();
        assert!(
            error.cause.contains("/nonexistent/runc") && error.hint.unwrap().contains("--runtime"),
            "and no hint weakens a container"
        );
    }

    #[test]
    fn a_runtime_says_whether_a_container_runs() {
        let folder = tempfile::tempdir().unwrap();
        for (status, is_running) in [("running", true), ("stopped", false)] {
            let known = container(folder.path(), &format!("echo '{{\"status\":\"{status}\"}}'"));
            assert_eq!(known.is_running().unwrap(), is_running);
        }
    }
}

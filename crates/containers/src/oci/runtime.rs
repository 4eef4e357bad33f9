//! [`Runtime`]: crun or runc, and [`Handle`]: a container that it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use super::Bundle;
use super::cgroups::has_cgroup2;
use crate::program;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Variables through which systemd communicates with its services.
const MANAGER: [&str; 4] = ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Poll interval of a container that is stopping.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long the runtime may fail for a container that it has state of: the process of it that ran the container may be deleting the state.
const DELETION: Duration = Duration::from_secs(2);

/// An OCI runtime.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    program: PathBuf,
}

/// The destination of the container's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdio {
    /// This process's own output.
    Inherit,
    /// All of it to this process's standard error.
    Errors,
    /// Pipes, for the caller to read.
    Piped,
}

/// A container, as seen by its runtime.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    runtime: Runtime,
    id: String,
    /// The directory with the runtime's state.
    state: PathBuf,
}

/// A container that was started. Dropping it kills the container and deletes it from the runtime.
pub(crate) struct Running {
    handle: Handle,
    child: Child,
    ended: Option<ExitStatus>,
}

/// Describes the runtime that runs containers on this host: its path, and whether it filters system calls.
///
/// # Errors
/// No runtime was found.
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
    /// Finds the runtime that the user named, or one that works on this host: crun, which starts faster, unless the cgroups of the host are
    /// not those that it supports.
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

    /// Whether it was built to filter system calls. Both runtimes report that with their version.
    ///
    /// # Errors
    /// It cannot be run.
    pub(crate) fn has_seccomp(&self) -> Result<bool> {
        let mut command = Command::new(&self.program);
        command.arg("--version").stdin(std::process::Stdio::null());
        let output = program::output(command, program::TIMEOUT);
        let step = "ask the runtime whether it filters system calls";
        let cannot = |cause: String| {
            let error = Error::new(ErrorKind::Other, step, format!("{} --version: {cause}", self.program.display()));
            error.hint("name another runtime with --runtime")
        };
        let output = output.map_err(|error| cannot(error.to_string()))?;
        if !output.status.success() {
            return Err(cannot(output.status.to_string()));
        }
        let version = String::from_utf8_lossy(&output.stdout).to_ascii_lowercase();
        Ok(version.contains("libseccomp:") || version.contains("+seccomp"))
    }

    /// The runtime that a container was started with.
    pub(crate) fn of(program: PathBuf) -> Self {
        Self { program }
    }

    /// The container of this id. `state`: the directory for the runtime's state.
    pub(crate) fn container(&self, id: &str, state: &Path) -> Handle {
        Handle { runtime: self.clone(), id: id.to_owned(), state: state.to_owned() }
    }
}

/// The directory of a runtime's state, as a process names its standard input.
const STATE_AS_INPUT: &str = "/proc/self/fd/0";

impl Handle {
    fn command(&self) -> Command {
        self.command_on(&self.state)
    }

    /// A command of the runtime on the state in the directory `state`.
    fn command_on(&self, state: &Path) -> Command {
        let mut command = Command::new(&self.runtime.program);
        // Messages of a service manager to this process are not for a container, but runtimes pass these variables on.
        for variable in MANAGER {
            command.env_remove(variable);
        }
        command.arg("--root").arg(state);
        command
    }

    /// The command that starts the container, waits for its end and returns its exit code. `pid`: the PID file, written when the container
    /// runs. `log`: the file for errors.
    pub(crate) fn run(&self, bundle: &Path, pid: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--bundle"]).arg(bundle);
        command.arg("--pid-file").arg(pid).arg(&self.id);
        command
    }

    /// The command that runs another process in the container. The file `process` describes it. Unlike a command line, other users cannot
    /// read that file.
    pub(crate) fn exec(&self, process: &Path, pid: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "exec", "--process"]).arg(process);
        command.arg("--pid-file").arg(pid).arg(&self.id);
        command
    }

    /// Starts the container, for the life of the returned value.
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

    /// Sends the container a signal.
    ///
    /// # Errors
    /// The runtime's message: the container does not run, or there is no such signal.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let step = "send a signal to the container";
        let output = self.ask(step, &["kill", &self.id, signal])?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Other, step, String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Whether the runtime has state of the container. Both keep a directory of its id as long as they have any.
    fn is_remembered(&self) -> bool {
        self.state.join(&self.id).symlink_metadata().is_ok()
    }

    /// Whether the container runs.
    ///
    /// # Errors
    /// The runtime has state of the container, but cannot be run. Then the container may still run.
    pub(crate) fn is_running(&self) -> Result<bool> {
        Ok(self.status()?.is_some_and(|status| status != "stopped"))
    }

    /// The container's state as the runtime names it; `None` if the runtime has no state of it.
    pub(super) fn status(&self) -> Result<Option<String>> {
        #[derive(serde::Deserialize)]
        struct State {
            status: String,
        }
        self.ask_while_remembered("ask the runtime for the container", &["state", &self.id], |output| {
            serde_json::from_slice::<State>(&output.stdout).ok().map(|state| state.status)
        })
    }

    /// Kills what is left of the container and deletes its state from the runtime.
    ///
    /// # Errors
    /// The runtime cannot be started, or still has state of the container. Then the container may still run.
    pub(crate) fn forget(&self) -> Result<()> {
        // For a container that ended by itself, the runtime has already deleted the state.
        self.ask_while_remembered("have the runtime end the container", &["delete", "--force", &self.id], |output| {
            output.status.success().then_some(())
        })
        .map(drop)
    }

    /// As [`Handle::ask`], with an answer that `read` accepts. `None`: the runtime has no state of the container.
    fn ask_while_remembered<T>(
        &self,
        step: &str,
        words: &[&str],
        read: impl Fn(&Output) -> Option<T>,
    ) -> Result<Option<T>> {
        let (began, mut pause) = (Instant::now(), POLL_INTERVAL);
        while self.is_remembered() {
            let output = self.ask(step, words)?;
            if let Some(answer) = read(&output) {
                return Ok(Some(answer));
            }
            if began.elapsed() > DELETION && self.is_remembered() {
                return Err(runtime_error(step, &output));
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        Ok(None)
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The directory with the runtime's state.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Runs a short command of the runtime. It gets the directory of the state as its standard input and by that name, because runtimes
    /// create a directory that is missing: by its path, that of a container which is being removed would exist again.
    pub(super) fn ask(&self, step: &str, words: &[&str]) -> Result<Output> {
        self.ask_within(step, words, program::TIMEOUT)
    }

    fn ask_within(&self, step: &str, words: &[&str], limit: Duration) -> Result<Output> {
        // Without a directory the command fails: `/dev/null` is none.
        let state = File::open(&self.state).map_or_else(|_| std::process::Stdio::null(), std::process::Stdio::from);
        let mut command = self.command_on(Path::new(STATE_AS_INPUT));
        command.args(words).stdin(state);
        let output = program::output(command, limit).map_err(|error| {
            let cause = format!("{} {}: {error}", self.runtime.program.display(), words.first().unwrap_or(&""));
            Error::new(ErrorKind::Other, step, cause).hint("the container may still run: bring its runtime back first")
        })?;
        let named = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            text.replace(STATE_AS_INPUT, &self.state.to_string_lossy()).into_bytes()
        };
        // A message names the directory by a path that a user can follow.
        Ok(Output { stderr: named(&output.stderr), ..output })
    }
}

/// The error of a runtime that failed.
pub(super) fn runtime_error(step: &str, output: &Output) -> Error {
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let cause =
        if message.is_empty() { format!("the runtime failed without a message ({})", output.status) } else { message };
    Error::new(ErrorKind::Other, step, cause)
}

/// Kills every container with state in the directory `state` and deletes it from its runtime: for a container of which nothing else is
/// known.
///
/// # Errors
/// The container's runtime cannot be started, or fails.
pub(crate) fn forget_all(state: &Path) -> Result<()> {
    let step = "look for what the runtime has";
    let entries = match std::fs::read_dir(state) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context(ErrorKind::Store, step)?,
    };
    for entry in entries {
        let entry = entry.context(ErrorKind::Store, step)?;
        let has = |name: &str| entry.path().join(name).exists();
        // Each runtime knows only its own containers. The other one would delete the state of running containers that it does not
        // recognize.
        let owner = [("state.json", "runc"), ("status", "crun")].into_iter().find(|(file, _)| has(file));
        if let Some((_, runtime)) = owner {
            let runtime = Runtime::find(Some(Path::new(runtime)))?;
            runtime.container(&entry.file_name().to_string_lossy(), state).forget()?;
        }
    }
    Ok(())
}

impl Running {
    /// Takes the pipes of the container's output; `None` at a second call.
    pub(crate) fn output(&mut self) -> (Option<std::process::ChildStdout>, Option<std::process::ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Returns the exit status, if the container has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().map_err(|error| failed(error.to_string()))?;
        }
        Ok(self.ended)
    }

    /// Stops it with `signal`. Kills it if it still runs after `patience`.
    pub(crate) fn stop(&mut self, signal: &str, patience: Duration) -> Result<()> {
        self.signal_or_log(signal);
        let began = Instant::now();
        while self.ended()?.is_none() && began.elapsed() < patience {
            std::thread::sleep(POLL_INTERVAL);
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
            tracing::warn!(%error, "parts of a container remain");
        }
    }
}

fn on_path(program: &OsStr) -> Option<PathBuf> {
    let found = if Path::new(program).components().count() > 1 {
        Some(PathBuf::from(program)).filter(|direct| direct.exists())
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
    };
    // The path is used later, from another directory.
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

    /// A runtime that runs a script, with a container that it has state of.
    pub(in crate::oci) fn container(folder: &Path, script: &str) -> Handle {
        let (program, state) = (folder.join("runtime"), folder.join("state"));
        write_program(&program, &format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::create_dir_all(state.join("box")).unwrap();
        Runtime::of(program).container("box", &state)
    }

    #[test]
    fn a_runtime_is_found_from_another_working_directory() {
        let named = Path::new("src/../Cargo.toml");
        let found = Runtime::find(Some(named)).unwrap();
        assert!(found.program().is_absolute() && found.program().exists(), "{found:?}");
        let missing = Runtime::find(Some(Path::new("./nonexistent"))).unwrap_err();
        assert!(missing.cause().to_string().contains("./nonexistent") && missing.hint.is_some());
    }

    #[test]
    fn a_container_whose_runtime_cannot_be_asked_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let failing = container(folder.path(), "echo broken >&2; exit 1");
        assert_eq!(failing.is_running().unwrap_err().cause().to_string(), "broken");
        assert_eq!(failing.forget().unwrap_err().cause().to_string(), "broken");
        let state = folder.path().join("state");
        let missing = Runtime::of("/nonexistent/runc".into()).container("box", &state);
        let error = missing.forget().unwrap_err();
        assert!(
            error.cause().to_string().contains("/nonexistent/runc") && error.hint.unwrap().contains("may still run")
        );
        assert!(missing.is_running().is_err());
        // With the state gone, nothing is left that could run.
        std::fs::remove_dir(state.join("box")).unwrap();
        assert!(missing.forget().is_ok() && !missing.is_running().unwrap());
    }

    #[test]
    fn a_container_is_gone_when_another_process_of_its_runtime_deletes_it_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state/box");
        // The first call finds the state in parts; before the second one it is gone.
        let script = format!("rmdir {0}/half 2>/dev/null || rmdir {0}; echo cannot load >&2; exit 1", state.display());
        for ask in [|handle: &Handle| handle.forget().is_ok(), |handle: &Handle| !handle.is_running().unwrap()] {
            let deleted = container(folder.path(), &script);
            std::fs::create_dir(state.join("half")).unwrap();
            assert!(ask(&deleted) && !state.exists());
        }
    }

    #[test]
    fn a_command_for_a_container_that_is_being_removed_does_not_create_its_directory_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        // Removes the directory, as another process may at that moment, then creates what it was given, as runtimes do.
        let script = format!("rm -r {}; mkdir -p \"$2\" || exit 1", state.display());
        let removed = container(folder.path(), &script);
        let _ended_or_not = removed.signal("KILL");
        assert!(!state.exists());
        assert!(removed.signal("KILL").is_err() && !state.exists(), "nor one that is gone");
    }

    #[test]
    fn a_runtime_that_hangs_is_an_error_that_names_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let hanging = container(folder.path(), "exec sleep 1000");
        let error = hanging.ask_within("end it", &["delete", "box"], Duration::from_millis(100)).unwrap_err();
        let cause = format!("{} delete: not done after 0.1 s", folder.path().join("runtime").display());
        assert_eq!(error.cause().to_string(), cause);
        assert!(error.hint.unwrap().contains("may still run"));
    }

    #[test]
    fn a_runtime_reports_whether_it_filters_system_calls() {
        let folder = tempfile::tempdir().unwrap();
        for (script, answer) in [("echo libseccomp: 2.5.4", Some(true)), ("echo +CAP", Some(false)), ("exit 1", None)] {
            let runtime = container(folder.path(), script).runtime;
            assert_eq!(runtime.has_seccomp().ok(), answer, "{script}");
        }
        let error = Runtime::of("/nonexistent/runc".into()).has_seccomp().unwrap_err();
        assert!(
            error.cause().to_string().contains("/nonexistent/runc") && error.hint.unwrap().contains("--runtime"),
            "and no hint weakens a container"
        );
    }

    #[test]
    fn a_runtime_reports_whether_a_container_runs() {
        let folder = tempfile::tempdir().unwrap();
        for (status, is_running) in [("running", true), ("stopped", false)] {
            let known = container(folder.path(), &format!("echo '{{\"status\":\"{status}\"}}'"));
            assert_eq!(known.is_running().unwrap(), is_running);
        }
    }
}

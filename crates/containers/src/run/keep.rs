//! Detached containers: the process that starts one hands it over to a keeper, a process that writes the output to the log, records the end
//! and cleans up.
//!
//! The keeper inherits the container's lock as its standard input, so the lock is held at every moment.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt};

use super::attend::{aside, exit_code, follow, process_of};
use super::containers::Containers;
use super::failure::RunError;
use super::kept::KeptContainer;
use super::log::{self, LOG_BYTES, LogWriter, Output};
use super::request::RunOutcome;
use super::signals::Signals;
use crate::Cause;
use tarpon_client::ContainerName;

/// Time limit for a container to start. Its first program may have to be fetched.
const STARTING: Duration = Duration::from_secs(300);

/// Time limit for a keeper to clean up after SIGTERM. The process that sent it cleans up whatever is left.
const ENDING: Duration = Duration::from_secs(10);

/// Longest line in which a keeper reports its result.
const REPORT_BYTES: u64 = 64 << 10;

/// Time limit for the last output of a container that has ended to reach the log.
const LAST_WORD: Duration = Duration::from_secs(10);

const STEP: &str = "run the container";

/// The one report of a keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "said")]
enum Report {
    Runs,
    Failed(RunError),
}

/// Starts a keeper for the container and waits until it reports that the container runs. `keeper_command`: see
/// [`RunRequest::keeper_command`](super::RunRequest::keeper_command).
pub(super) async fn hand_over(
    container: KeptContainer,
    keeper_command: &[OsString],
    signals: &mut Signals,
) -> Result<RunOutcome, RunError> {
    fn failed(cause: impl Into<Cause>) -> RunError {
        RunError::failed("start the container's keeper", cause)
    }

    let (program, arguments) = keeper_command.split_first().ok_or_else(|| failed("this program cannot start one"))?;
    let name = container.record().name.clone();
    let lock = container.lock().share().map_err(failed)?;
    let mut keeper = tokio::process::Command::new(program)
        .args(arguments)
        .arg(name.as_str())
        .current_dir("/")
        .stdin(lock)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let mut line = Vec::new();
    let output = keeper.stdout.take().map(|output| tokio::io::BufReader::new(output.take(REPORT_BYTES)));
    let mut output = output.ok_or_else(|| failed("it has no output"))?;
    let started = tokio::select! {
        report = tokio::time::timeout(STARTING, output.read_until(b'\n', &mut line)) => match report {
            Ok(Ok(_)) => read_report(&line),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(failed(format!("not running after {} s", STARTING.as_secs()))),
        },
        () = signals.asked_to_stop() => Err(RunError::interrupted()),
    };
    match started {
        Ok(()) => {
            container.give_up();
            Ok(RunOutcome::Detached(name))
        }
        Err(mut error) => {
            end(&mut keeper).await;
            if let Err(remains) = container.remove() {
                // The caller needs to know why the container did not start, first of all.
                let hint = || format!("parts of it remain ({remains}): tarpon rm -f {name} removes them");
                error.error.hint.get_or_insert_with(hint);
            }
            Err(error)
        }
    }
}

/// Ends a keeper whose container is about to be removed. SIGTERM comes first, so that the keeper ends its runtime and waits for it.
async fn end(keeper: &mut tokio::process::Child) {
    if let Some(process) = process_of(keeper) {
        let _gone_just_now = kill_process(process, Signal::TERM);
    }
    if tokio::time::timeout(ENDING, keeper.wait()).await.is_err() {
        let _ended_already = keeper.start_kill();
        let _status = keeper.wait().await;
    }
}

fn read_report(line: &[u8]) -> Result<(), RunError> {
    match serde_json::from_slice(line) {
        Ok(Report::Runs) => Ok(()),
        Ok(Report::Failed(error)) => Err(error),
        Err(_) => Err(RunError::failed("start the container's keeper", "it exited without a report")),
    }
}

impl Containers {
    /// Keeps the container of this name until it ends: the main function of a process that
    /// [`RunRequest::keeper_command`](super::RunRequest::keeper_command) starts. `lock` is its standard input. `report` is its standard
    /// output, which gets one line when the container runs or has failed to start.
    pub async fn keep(
        &self,
        name: &ContainerName,
        lock: OwnedFd,
        report: impl Write,
        signals: &mut Signals,
    ) -> Result<(), RunError> {
        // The terminal of the parent process does not belong to the keeper.
        let _is_leader_already = rustix::process::setsid();
        let mut report = Some(report);
        let kept = keep(self, name, lock, signals, || write_report(report.take(), &Report::Runs)).await;
        match kept {
            Err(error) if report.is_some() => {
                write_report(report.take(), &Report::Failed(error));
                Ok(())
            }
            other => other,
        }
    }
}

fn write_report(to: Option<impl Write>, report: &Report) {
    if let Some(mut to) = to {
        // The parent process may have ended.
        let line = serde_json::to_string(report).unwrap_or_default();
        let _parent_ended = writeln!(to, "{line}").and_then(|()| to.flush());
    }
}

async fn keep(
    containers: &Containers,
    name: &ContainerName,
    lock: OwnedFd,
    signals: &mut Signals,
    mut runs: impl FnMut(),
) -> Result<(), RunError> {
    let mut container = KeptContainer::inherit(containers.clone(), name, lock)?.connected().await?;
    let failed = |error: io::Error| RunError::failed(STEP, error);
    let (pid, runtime_log) = (container.place().pid_file(), container.place().runtime_log());
    let (child, written, _open) = start(&container).map_err(failed)?;
    let ended = follow(child, &pid, signals, |pid| {
        container.note_start(pid);
        runs();
    })
    .await?;
    let code = exit_code(ended, STEP, &runtime_log);
    if !ended.ran {
        return code.map(drop);
    }
    let settled = tokio::task::spawn_blocking(move || {
        wait_for(&written);
        container.settle(code.ok())
    });
    settled.await.map_err(|error| RunError::failed(STEP, error))?.map_err(RunError::from)
}

/// The runtime, the receiver that disconnects when all output is in the log, and the file to keep open until the end.
type Started = (tokio::process::Child, Receiver<()>, Option<File>);

fn start(container: &KeptContainer) -> io::Result<Started> {
    let (place, record) = (container.place(), container.record());
    let command = container.handle().run(place.folder(), &place.pid_file(), &place.runtime_log());
    let mut command = tokio::process::Command::from(command);
    aside(&mut command, false);
    let log = Arc::new(Mutex::new(LogWriter::create(place.folder(), LOG_BYTES)?));
    let (tell, written) = channel();
    let mut outputs: Vec<(File, Output)> = Vec::new();
    let open = if record.terminal {
        let (ours, theirs) = terminal()?;
        command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        outputs.push((ours, Output::Stdout));
        None
    } else {
        let ((out, stdout), (err, stderr)) = (io::pipe()?, io::pipe()?);
        command.stdout(stdout).stderr(stderr);
        outputs.extend([(OwnedFd::from(out).into(), Output::Stdout), (OwnedFd::from(err).into(), Output::Stderr)]);
        input(&mut command, record.input)?
    };
    let child = command.spawn()?;
    // This closes the container's ends of the pipes.
    drop(command);
    for (from, output) in outputs {
        let (log, tell) = (log.clone(), tell.clone());
        std::thread::Builder::new().name(format!("log-{output:?}")).spawn(move || {
            log::copy(from, output, &log);
            drop(tell);
        })?;
    }
    drop(tell);
    Ok((child, written, open))
}

/// The container gets no input. If its input is to stay open, it sees no end of file.
fn input(command: &mut tokio::process::Command, is_open: bool) -> io::Result<Option<File>> {
    if !is_open {
        command.stdin(Stdio::null());
        return Ok(None);
    }
    let (theirs, ours) = io::pipe()?;
    command.stdin(theirs);
    Ok(Some(OwnedFd::from(ours).into()))
}

/// A terminal without a user, which the runtime takes for its user's terminal.
fn terminal() -> io::Result<(File, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?;
    Ok((ours.into(), theirs))
}

/// Waits until all output of the container is in the log.
fn wait_for(written: &Receiver<()>) {
    match written.recv_timeout(LAST_WORD) {
        // All writers have finished.
        Err(RecvTimeoutError::Disconnected) | Ok(()) => {}
        Err(RecvTimeoutError::Timeout) => tracing::warn!("the last output of the container may be missing in the log"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use super::super::container_dir::ContainerDirs;
    use super::super::containers::tests::containers;
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn the_report_of_a_keeper_is_parsed_and_silence_is_a_failure() {
        let mut said = Vec::new();
        write_report(Some(&mut said), &Report::Runs);
        assert!(read_report(&said).is_ok());
        let mut said = Vec::new();
        write_report(Some(&mut said), &Report::Failed(RunError::failed(STEP, "no room")));
        assert_eq!(read_report(&said).unwrap_err().error.cause().to_string(), "no room");
        assert!(read_report(b"").unwrap_err().error.cause().to_string().contains("without a report"));
    }

    #[tokio::test]
    async fn why_a_container_did_not_start_is_known_even_if_it_cannot_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let containers = containers(folder.path());
        let (place, mut lock) = ContainerDirs::of(containers.store()).create(&record("web")).unwrap();
        let container =
            KeptContainer::inherit(containers.clone(), &"web".parse().unwrap(), lock.share().unwrap()).unwrap();
        lock.leave_to_heir();
        // Its runtime cannot be asked to end it.
        std::fs::create_dir(place.runtime().join("tarpon-0123456789ab")).unwrap();
        let report = serde_json::to_string(&Report::Failed(RunError::failed(STEP, "no room"))).unwrap();
        let keeper = ["sh", "-c", "printf '%s\\n' \"$0\"", &report].map(OsString::from);
        let error = hand_over(container, &keeper, &mut Signals::none()).await.unwrap_err();
        assert_eq!(error.error.cause().to_string(), "no room");
        assert!(place.exists());
    }

    #[test]
    fn a_terminal_shows_what_is_written_to_it() {
        let (ours, theirs) = terminal().unwrap();
        File::from(theirs).write_all(b"hello\n").unwrap();
        let mut line = Vec::new();
        BufReader::new(ours.take(100)).read_until(b'\n', &mut line).unwrap();
        assert_eq!(line, b"hello\r\n");
    }
}

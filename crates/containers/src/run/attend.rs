//! Supervises a running process in the foreground: a container, or a process in it.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use tokio::process::Child;
use tokio::time::Instant;

use super::failure::RunError;
use super::kept::KeptContainer;
use super::request::RunOutcome;
use super::signals::{Signals, asks_to_stop};

/// Shortest and longest interval between two checks of whether the runtime has started its process; see [`until_next_check`].
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);
/// Grace period for a runtime that was signalled to stop. It may still report a started process: a program can receive signals and print
/// before its runtime has written the PID file. The time of a hundred checks is more than that takes on a busy machine, and short for a
/// user.
const GRACE: Duration = Duration::from_secs(1);

/// Runs the container in the foreground of this process until it ends.
pub(super) async fn attended(container: KeptContainer, signals: &mut Signals) -> Result<RunOutcome, RunError> {
    let mut container = container.connected().await?;
    let (record, place) = (container.record(), container.place());
    let command = container.handle().run(place.folder(), &place.pid_file(), &place.runtime_log());
    let mut command = tokio::process::Command::from(command);
    command.stdin(if record.input { std::process::Stdio::inherit() } else { std::process::Stdio::null() });
    aside(&mut command, record.terminal);
    let child = command.spawn().map_err(|error| RunError::failed("start the runtime", error))?;
    let (pid, log) = (container.place().pid_file(), container.place().runtime_log());
    let ended = follow(child, &pid, signals, |pid| container.note_start(pid)).await?;
    let code = exit_code(ended, "run the container", &log);
    if ended.ran
        && let Err(error) = container.settle(code.as_ref().ok().copied())
    {
        // The container has run, and its exit code is the result that users wait for.
        tracing::warn!(%error, "parts of the container remain: tarpon rm removes them");
    }
    code.map(RunOutcome::Exited)
}

/// Puts a runtime without a terminal of its own in a separate process group, so that it gets signals only from this process. Otherwise a
/// key that signals the foreground process group would reach the container twice.
pub(super) fn aside(command: &mut tokio::process::Command, terminal: bool) {
    if !terminal {
        command.process_group(0);
    }
}

/// How a runtime ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuntimeEnded {
    status: ExitStatus,
    /// Whether it had started its process.
    pub(super) ran: bool,
}

/// Waits for the end of a runtime and forwards signals to it. The runtime forwards them to its container. `started` is called with the PID
/// of the process in the container, once there is one.
///
/// # Errors
/// Interrupted, and no process started within [`GRACE`] or before a second signal. Then the runtime is dead.
pub(super) async fn follow(
    mut child: Child,
    pid_file: &Path,
    signals: &mut Signals,
    mut started: impl FnMut(u32),
) -> Result<RuntimeEnded, RunError> {
    let began = Instant::now();
    let mut ran = false;
    // A runtime that is still starting forwards nothing: a signal would only kill it and leave a half-started container. So signals are
    // held back, one of each kind, as the kernel does for a process that blocks them.
    let mut early: Vec<Signal> = Vec::new();
    let mut asked_to_stop: Option<Instant> = None;
    let status = loop {
        let wait = if early.is_empty() { until_next_check(began.elapsed()) } else { POLL_INTERVAL };
        let signal = tokio::select! {
            status = child.wait() => break status.map_err(|error| RunError::failed("wait for the runtime", error))?,
            signal = signals.next() => Some(signal),
            () = tokio::time::sleep(wait), if !ran => None,
        };
        if !ran && let Some(pid) = pid(pid_file) {
            ran = true;
            started(pid);
        }
        if ran {
            early.drain(..).chain(signal).for_each(|signal| pass_on(&child, signal));
        } else if let Some(since) = asked_to_stop
            && (signal.is_some_and(asks_to_stop) || since.elapsed() >= GRACE)
        {
            end(&mut child).await;
            return Err(RunError::interrupted());
        } else if let Some(signal) = signal.filter(|signal| !early.contains(signal)) {
            if asks_to_stop(signal) {
                asked_to_stop = Some(Instant::now());
            }
            early.push(signal);
        }
    };
    if let Some(pid) = pid(pid_file).filter(|_| !ran) {
        ran = true;
        started(pid);
    }
    if !ran && asked_to_stop.is_some() {
        // A key on a terminal signals the runtime as well.
        return Err(RunError::interrupted());
    }
    Ok(RuntimeEnded { status, ran })
}

/// A quarter of the time that the start has taken so far. Containers that start concurrently slow each other down enough without 100 checks
/// per second each, which took a quarter of the processor with 64 containers.
fn until_next_check(taken: Duration) -> Duration {
    (taken / 4).clamp(POLL_INTERVAL, LONGEST_INTERVAL)
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(process) = process_of(child) {
        let _gone_just_now = kill_process(process, signal);
    }
}

/// The PID of a process that was not waited for yet, so that the PID cannot have been reused.
pub(super) fn process_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
}

/// Kills a runtime with everything it has started outside the container, and waits for it.
async fn end(child: &mut Child) {
    if let Some(process) = process_of(child) {
        let leads = getpgid(Some(process)) == Ok(process);
        let _gone_just_now =
            if leads { kill_process_group(process, Signal::KILL) } else { kill_process(process, Signal::KILL) };
    }
    let _status = child.wait().await;
}

/// The exit code of the process; 128 plus the signal number if a signal ended it.
pub(super) fn exit_code(ended: RuntimeEnded, step: &str, log: &Path) -> Result<u8, RunError> {
    if !ended.ran {
        return Err(RunError::of_runtime(step, log, ended.status));
    }
    let code = ended.status.code().and_then(|code| u8::try_from(code).ok());
    code.ok_or_else(|| RunError::failed(step, format!("the runtime was ended: {}", ended.status)))
}

fn pid(file: &Path) -> Option<u32> {
    // crun writes the file in place, runc writes it under another name first.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::signals::SIGNALLED;
    use super::*;

    async fn ended(script: &str, pid_file: &Path) -> (RuntimeEnded, Vec<u32>) {
        let child = tokio::process::Command::new("sh").args(["-c", script, "sh"]).arg(pid_file).spawn().unwrap();
        let mut said = Vec::new();
        let ended = follow(child, pid_file, &mut Signals::none(), |pid| said.push(pid)).await.unwrap();
        (ended, said)
    }

    #[tokio::test]
    async fn what_a_runtime_started_has_an_exit_code_and_what_it_did_not_start_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let (file, log) = (folder.path().join("pid"), folder.path().join("log"));
        let (never, said) = ended("exit 3", &file).await;
        assert!(!never.ran && said.is_empty());
        assert_eq!(exit_code(never, "run", &log).unwrap_err().exit, 125);
        let (ran, said) = ended("echo 17 > $1; exit 3", &file).await;
        assert_eq!((exit_code(ran, "run", &log).unwrap(), said), (3, vec![17]));
        let (killed, _) = ended("echo 17 > $1; kill -KILL $$", &file).await;
        assert!(exit_code(killed, "run", &log).unwrap_err().error.cause().to_string().contains("signal: 9"));
    }

    #[test]
    fn a_start_is_reported_within_a_quarter_of_its_duration_and_a_slow_one_is_polled_rarely() {
        assert_eq!(
            [0, 40, 100, 60_000].map(|taken| until_next_check(Duration::from_millis(taken)).as_millis()),
            [10, 10, 25, 200]
        );
        let (mut taken, mut looks) = (Duration::ZERO, 0);
        while taken < Duration::from_secs(4) {
            taken += until_next_check(taken);
            looks += 1;
        }
        assert!(looks < 40, "{looks}");
    }

    #[tokio::test]
    async fn a_signal_before_the_runtime_reports_a_start_is_passed_on_after_it() {
        let _alone = SIGNALLED.lock().await;
        for sent in [Signal::QUIT, Signal::USR1] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("pid");
            let mut signals = Signals::listen().unwrap();
            let script = "trap 'exit 42' QUIT HUP USR1; echo 17 > $1; while :; do sleep .01; done";
            let mut command = tokio::process::Command::new("sh");
            command.args(["-c", script, "sh"]).arg(&file);
            aside(&mut command, false);
            let mut heard = Signals::listen().unwrap();
            kill_process(rustix::process::getpid(), sent).unwrap();
            heard.next().await;
            // The wait begins before the shell does.
            let follows = follow(command.spawn().unwrap(), &file, &mut signals, |_| {});
            let ended = tokio::time::timeout(Duration::from_secs(60), follows).await.expect("it is passed on").unwrap();
            assert_eq!((ended.ran, ended.status.code()), (true, Some(42)), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn an_interrupt_of_a_busy_runtime_ends_it_and_all_that_it_started() {
        let _alone = SIGNALLED.lock().await;
        let folder = tempfile::tempdir().unwrap();
        let mut signals = Signals::listen().unwrap();
        let (reads, writes) = std::io::pipe().unwrap();
        // The shell ignores the signal, and so does its child, which holds the pipe. It has the grace period to report a started process.
        let script = "trap '' HUP; sleep 1000 & kill -HUP $PPID; wait";
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", script]).stdout(writes);
        aside(&mut command, false);
        let child = command.spawn().unwrap();
        drop(command);
        let ended = follow(child, &folder.path().join("pid"), &mut signals, |_| panic!("nothing ran")).await;
        assert_eq!(ended.unwrap_err().exit, 130);
        let rest = tokio::task::spawn_blocking(move || std::io::read_to_string(reads)).await.unwrap();
        assert_eq!(rest.unwrap(), "", "the other end is closed");
    }
}

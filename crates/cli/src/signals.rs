//! Signals that end a command: commands without cleanup exit with 130 and one line, others clean up first.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::commands::session::command_runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::terminal;

/// What shells add to the number of the signal that ended a process.
const KILLED: i32 = 128;

/// Whether the command itself handles SIGINT.
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT ends this process with 130, until [`leave_to_command`]. A process that was started with SIGINT ignored, as a shell
/// does for commands in the background, continues to ignore it.
///
/// Destructors do not run then: such a command keeps all its state in the store, which survives any end of a process.
pub(crate) fn end_on_interrupt() {
    if is_ignored(SignalKind::interrupt()) {
        return;
    }
    // Without a thread or a signal handler the signal itself ends the process, and shells show 130, too.
    drop(watch(SignalKind::interrupt(), || {
        if !IS_ANSWERED.load(Ordering::Acquire) {
            end();
        }
    }));
}

/// From now on SIGTERM, SIGHUP and SIGQUIT end this process only after its terminal is restored, with the code that shells show for the signal.
pub(crate) fn end_on_termination() {
    for kind in [SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()] {
        if !is_ignored(kind) {
            // Otherwise the signal itself ends the process.
            drop(watch(kind, move || {
                let _until_the_end = terminal::restored();
                std::process::exit(KILLED + kind.as_raw_value())
            }));
        }
    }
}

/// Calls `answer` on each such signal, in a thread of its own.
fn watch(kind: SignalKind, answer: impl Fn() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        signal(kind)?
    };
    let watcher = move || {
        runtime.block_on(async {
            while signals.recv().await.is_some() {
                answer();
            }
        });
    };
    std::thread::Builder::new().name("interrupt".into()).spawn(watcher).map(drop)
}

/// The command now handles SIGINT itself.
pub(crate) fn leave_to_command() {
    IS_ANSWERED.store(true, Ordering::Release);
}

fn end() -> ! {
    let _until_the_end = terminal::restored();
    let stderr = io::stderr();
    // A terminal may show a progress display in this line. The line is dropped if standard error is a full pipe: it must not
    // keep the process from ending, and a thread that waits for that pipe may hold the lock of `stderr`.
    let line: &[u8] = if stderr.is_terminal() { b"\ntarpon: interrupted\n" } else { b"tarpon: interrupted\n" };
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
        let _is_read = rustix::io::write(&stderr, line);
    }
    std::process::exit(Exit::Interrupted as i32)
}

/// Whether this process ignores the signal, as its parent decided.
fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, signal)
}

/// Whether a process with this `/proc` status ignores the signal.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = u32::try_from(signal.as_raw_value() - 1).ok().and_then(|number| 1_u64.checked_shl(number));
    bit.is_some_and(|bit| mask & bit != 0)
}

/// The signals that stop this process: Ctrl-C, SIGTERM, and SIGHUP when the terminal closes, unless the process was started to survive that
/// (nohup). Once this exists, none of them kills the process.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let hangup = (!is_ignored(SignalKind::hangup())).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(_) = hangup(&mut self.hangup) => {}
        }
    }
}

/// The next hangup; `None` if hangups are ignored.
async fn hangup(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => None,
    }
}

/// Runs `work`, or stops it on a signal. Either way no part of it runs on after this returns: it waits for threads that still
/// write, so that their temporary files are removed.
pub(crate) fn interruptible<T>(doing: impl Fn() -> String, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = command_runtime()?;
    runtime.block_on(async {
        let mut stop = Stop::new().doing(&doing)?;
        tokio::select! {
            // A signal that came first wins.
            biased;
            () = stop.asked() => Err(Failure::new(Exit::Interrupted, format_args!("{}: interrupted", doing()))),
            done = work => done,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        for (mask, ignored) in [("0000000000000001", true), ("0000000000001002", false), ("", false), ("x", false)] {
            let status = format!("Name:\ttarpon\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
            assert_eq!(ignores(&status, SignalKind::hangup()), ignored, "{mask}");
        }
    }
}

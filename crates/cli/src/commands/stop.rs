//! Signals that stop a command which has to clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::session::runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::interrupt::is_ignored;

/// The signals that stop this process: Ctrl-C, SIGTERM, and SIGHUP when the terminal closes, unless the process was started to survive that
/// (nohup). Once this exists, none of them kills the process.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let hangup = (!is_ignored(SignalKind::hangup())).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    pub(super) async fn asked(&mut self) {
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
pub(super) fn interruptible<T>(doing: impl Fn() -> String, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
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

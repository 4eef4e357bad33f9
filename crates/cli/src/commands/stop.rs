//! Being asked to stop, where there is something to clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::session::runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::interrupt::is_ignored;

/// The signals that ask this process to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that goes, unless it was started so that it outlives
/// that (nohup). None ends it any more once this was made.
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

/// The next hangup; none if they are ignored.
async fn hangup(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => None,
    }
}

/// Does `work`, or stops it when this process is asked to stop. Either way nothing of it goes on when this returns: threads that
/// still write are waited for, so that their temporary files are gone.
pub(super) fn interruptible<T>(doing: impl Fn() -> String, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut stop = Stop::new().doing(&doing)?;
        tokio::select! {
            // What was asked for first counts.
            biased;
            () = stop.asked() => Err(Failure::new(Exit::Interrupted, format_args!("{}: interrupted", doing()))),
            done = work => done,
        }
    })
}

//! Being asked to stop, where there is something to clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::session::runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};

/// The signals that ask this process to stop: Ctrl-C and SIGTERM. Neither ends it any more once this was made.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
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

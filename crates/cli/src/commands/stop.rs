//! Being asked to stop, where there is something to clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

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

//! The signals that end a server in order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Ended;

/// SIGTERM and SIGINT. From when this is made, neither ends the process by itself.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves at one of them, also at one that came before.
    pub(super) async fn stop(&mut self) -> Ended {
        tokio::select! {
            _ = self.terminate.recv() => {
                tracing::info!("SIGTERM: unmounting");
                Ended::Terminated
            }
            _ = self.interrupt.recv() => {
                tracing::info!("SIGINT: unmounting");
                Ended::Interrupted
            }
        }
    }
}

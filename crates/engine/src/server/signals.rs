//! The signals that end a server in order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Ended;

/// SIGTERM and SIGINT. From when this is made, neither ends the process by itself.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves at one of them, also at one that came before.
    pub(crate) async fn stop(&mut self) -> Ended {
        tokio::select! {
            _ = self.terminate.recv() => {
                tracing::info!("SIGTERM");
                Ended::Terminated
            }
            _ = self.interrupt.recv() => {
                tracing::info!("SIGINT");
                Ended::Interrupted
            }
        }
    }

    /// Resolves at SIGINT alone. A service manager sends SIGTERM again when its patience is over; that must not fail readers.
    pub(crate) async fn interrupted(&mut self) -> Ended {
        self.interrupt.recv().await;
        tracing::info!("SIGINT");
        Ended::Interrupted
    }
}
